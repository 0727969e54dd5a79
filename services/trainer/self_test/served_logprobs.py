"""Served logprobs beside a forward pass in float64 of the version that each token is labelled with.

python -m services.trainer.self_test.served_logprobs RUN_DIR ANSWERS --initial MODEL
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from services.trainer.checkpoints.export import export


class Versions:
    """The model of each policy version that a run published.

    Args:
        run_dir: with a checkpoint of every train step.
        initial: folder of the model that the run began with, which it published first.
    """

    def __init__(self, run_dir: Path, initial: Path) -> None:
        lines = (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
        steps = {one["policy_version"]: one["step"] for one in map(json.loads, lines)}
        self._checkpoints = {
            version: run_dir / "checkpoints" / f"step-{step:08d}" for version, step in steps.items()
        }
        self._initial, self._first = initial, min(steps) - 1
        self._loaded: dict[int, PreTrainedModel] = {}

    def __contains__(self, version: int) -> bool:
        """Whether the run published it."""
        return version == self._first or version in self._checkpoints

    def model(self, version: int) -> PreTrainedModel:
        """The weights of a version, in the type that they were served in, computing in float64."""
        if version not in self._loaded:
            self._loaded[version] = self._load(version)
        return self._loaded[version]

    def _load(self, version: int) -> PreTrainedModel:
        if version == self._first:
            return _model(self._initial)
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch) / "model"
            export(self._checkpoints[version], folder)
            return _model(folder)


def _model(folder: Path) -> PreTrainedModel:
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float64, use_safetensors=True
    )
    return model.eval()


def gaps(versions: Versions, answer: Mapping[str, Any]) -> list[float]:
    """|served - computed| of each token whose version the run published, nats."""
    prompt, response = answer["prompt_token_ids"], answer["token_ids"]
    found: list[float] = []
    for version, start, end, _ in answer["spans"]:
        if version not in versions:
            continue
        with torch.no_grad():
            ids = torch.tensor([prompt + response])
            logits = versions.model(version)(ids).logits[0, len(prompt) - 1 : -1]
        chosen = torch.tensor(response)[:, None]
        computed = torch.log_softmax(logits, -1).gather(-1, chosen)[start:end, 0]
        served = torch.tensor(answer["logprobs"][start:end], dtype=torch.float64)
        found += (served - computed).abs().tolist()
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Print how many tokens were compared, and the mean and largest gap."""
    parser = argparse.ArgumentParser()
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("answers", type=Path, help="JSON: a list of trajectories")
    parser.add_argument("--initial", type=Path, required=True)
    arguments = parser.parse_args(argv)
    versions = Versions(arguments.run_dir, arguments.initial)
    answers = json.loads(arguments.answers.read_text(encoding="utf-8"))
    found = [gap for answer in answers for gap in gaps(versions, answer)]
    figures = {
        "tokens": len(found),
        "mean_gap": sum(found) / len(found) if found else None,
        "largest_gap": max(found, default=None),
    }
    sys.stdout.write(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
