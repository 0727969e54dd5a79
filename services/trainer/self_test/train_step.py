"""One rank's train step beside a plain loop in float64, its memory beside the sizing, its speed.

python -m services.trainer.self_test.train_step --device cpu
"""

import argparse
import gc
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import torch
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

from services.protocol.run.algorithm import AlgorithmConfig
from services.protocol.train_batch import (
    BatchBuilder,
    ScoredTrajectory,
    TrainBatch,
    TrainGroup,
)
from services.protocol.trainer import RunStart
from services.protocol.trajectory import PolicySpan, Trajectory
from services.trainer.algorithms.advantages.advantages import group_advantages
from services.trainer.config import TrainerConfig
from services.trainer.rank.learner import Learner
from services.trainer.rank.process_group import join_group, open_store
from services.trainer.rank.rank_messages import RankStep
from services.trainer.sizing.rank_memory import rank_bytes
from services.trainer.sizing.shape import ModelShape
from services.trainer.sizing.training import Training

_SMALL: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "tie_word_embeddings": False,
}
_HALF_BILLION: dict[str, Any] = {
    "vocab_size": 151_936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "tie_word_embeddings": False,
}
_TIMED: dict[str, tuple[dict[str, Any], int]] = {
    "cpu": (_SMALL, 128),
    "cuda": (_HALF_BILLION, 1024),
}
"""Model of the step that is timed, and tokens of its rows. The small one is compared."""

_ROWS = 8
_PROMPT = 16
_COMPARED_LENGTH = 96
_ALGORITHM = AlgorithmConfig(learning_rate=1e-4)
_OFFSETS = (0.1, -0.05, 0.0)
"""Behaviour logprobs differ from the policy's by these nats, so that ratios are not 1."""


class Reference:
    """The same step by transformers alone, in float64, one trajectory at a time."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        load = AutoModelForCausalLM.from_pretrained
        self._model = load(folder, dtype=torch.float64).to(device)
        self._device = device

    def logprobs(self, row: Sequence[int]) -> torch.Tensor:
        """Of tokens 1.. of a row."""
        ids = torch.tensor([row], device=self._device)
        logits = self._model(input_ids=ids).logits[0, :-1]
        return logits.log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]

    def step(self, groups: Sequence[TrainGroup]) -> tuple[float, float]:
        """Loss and gradient norm of GRPO with a clip, arXiv 2402.03300; updates the weights."""
        low, high = 1 - _ALGORITHM.clip_low, 1 + _ALGORITHM.clip_high
        tokens = sum(
            len(one.trajectory.response_token_ids) for group in groups for one in group.trajectories
        )
        loss = 0.0
        for group in groups:
            advantages = group_advantages([one.reward for one in group.trajectories], "grpo")
            for one, advantage in zip(group.trajectories, advantages, strict=True):
                row = one.trajectory.prompt_token_ids + one.trajectory.response_token_ids
                current = self.logprobs(row)[_PROMPT - 1 :]
                behaviour = torch.tensor(one.trajectory.behaviour_logprobs, device=self._device)
                ratio = (current - behaviour).exp()
                clipped = ratio.clamp(low, high) * advantage
                part = -torch.minimum(ratio * advantage, clipped).sum() / tokens
                part.backward()  # type: ignore[no-untyped-call]
                loss += part.item()
        parameters = list(self._model.parameters())
        norm = torch.nn.utils.clip_grad_norm_(parameters, _ALGORITHM.grad_clip)
        rate, decay = _ALGORITHM.learning_rate, _ALGORITHM.weight_decay
        adamw = torch.optim.AdamW(parameters, lr=rate, betas=(0.9, 0.95), weight_decay=decay)
        adamw.step()
        return loss, norm.item()


def make_model(folder: Path, shape: dict[str, Any]) -> Path:
    """Write a Qwen3 of random weights whose logits are not all alike."""
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(Qwen3Config(**shape))
    torch.nn.init.normal_(model.lm_head.weight, std=0.1)
    model.save_pretrained(folder)
    return folder


def random_rows(count: int, length: int, seed: int) -> list[list[int]]:
    """Token ids of rows that are not all of one length, so that packing matters."""
    draw = torch.Generator().manual_seed(seed)
    return [
        torch.randint(_SMALL["vocab_size"], (length - 7 * (index % 5),), generator=draw).tolist()
        for index in range(count)
    ]


def groups_of(
    rows: Sequence[Sequence[int]], logprobs: Sequence[Sequence[float]]
) -> list[TrainGroup]:
    """One sample group of all rows; `logprobs` are of the tokens after each prompt."""
    made = []
    for index, (row, behaviour) in enumerate(zip(rows, logprobs, strict=True)):
        size = len(row) - _PROMPT
        trajectory = Trajectory(
            prompt_token_ids=tuple(row[:_PROMPT]),
            response_token_ids=tuple(row[_PROMPT:]),
            behaviour_logprobs=tuple(behaviour),
            loss_mask=(1,) * size,
            spans=(PolicySpan(version=0, start=0, end=size, replica_id="none"),),
            finish_reason="stop",
            text="",
        )
        made.append(ScoredTrajectory(trajectory=trajectory, reward=float(index % 3 == 0)))
    return [TrainGroup(group_id=0, trajectories=tuple(made))]


def batch_of(groups: Sequence[TrainGroup], step: int) -> TrainBatch:
    """The groups as a train step gets them."""
    builder = BatchBuilder(run_id="self-test", step=step)
    for group in groups:
        builder.add(group)
    return builder.batch()


class Rank:
    """The trainer's own rank, the only one of its group; a context manager.

    Args:
        model: folder of its model.
        device: `cpu` or `cuda`.
        tokens: of a micro-batch.
    """

    def __init__(self, model: Path, device: str, tokens: int) -> None:
        on_gpu = device == "cuda"
        self.config = TrainerConfig(
            model=str(model),
            world_size=1,
            device="cuda" if on_gpu else "cpu",
            dtype="bfloat16" if on_gpu else "float32",
            micro_batch_tokens=tokens,
            canary_sequences=0,
        )
        join_group(self.config, 0, open_store("127.0.0.1"), "127.0.0.1")
        self.learner, self._step = Learner(self.config), 0
        self._start = RunStart(
            run_id="self-test",
            checkpoint_dir=str(model.with_name("checkpoints")),
            algorithm=_ALGORITHM,
            temperature=1.0,
            seed=0,
        )
        self.learner.start_run(self._start, 0)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        torch.distributed.destroy_process_group()

    def logprobs(self, rows: list[list[int]]) -> list[torch.Tensor]:
        """Of tokens 1.. of each row."""
        scored = self.learner.logprobs(rows)
        return [torch.tensor(scored[index]) for index in range(len(rows))]

    def train(self, groups: Sequence[TrainGroup]) -> RankStep:
        """The next step."""
        self._step += 1
        plan = self.learner.model.plan(batch_of(groups, self._step), self._start)
        return self.learner.train(plan.part(0), self._step - 1, self._step)


def compare(folder: Path, device: str) -> dict[str, float]:
    """A step of the rank and of the reference."""
    model = make_model(folder, _SMALL)
    rows = random_rows(_ROWS, _COMPARED_LENGTH, seed=1)
    reference = Reference(model, torch.device(device))
    with torch.no_grad():
        expected = [reference.logprobs(row).cpu() for row in rows]
    offsets = torch.tensor(_OFFSETS).repeat(_COMPARED_LENGTH)
    answers = [one[_PROMPT - 1 :] for one in expected]
    behaviour = [(one + offsets[: len(one)]).tolist() for one in answers]
    groups = groups_of(rows, behaviour)
    loss, norm = reference.step(groups)
    with torch.no_grad():
        updated = [reference.logprobs(row).cpu() for row in rows]
    with Rank(model, device, _ROWS * _COMPARED_LENGTH) as rank:
        before = _gap(rank.logprobs(rows), expected)
        found = rank.train(groups).metrics
        after = _gap(rank.logprobs(rows), updated)
    return {
        "loss": found["loss"],
        "loss_float64": loss,
        "grad_norm": found["grad_norm"],
        "grad_norm_float64": norm,
        "logprob_gap": before,
        "logprob_gap_after": after,
        "moved": _gap(updated, expected),
    }


def _gap(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> float:
    """Mean difference of a token's logprob, nats."""
    pairs = zip(found, expected, strict=True)
    return torch.cat([(one.double() - other).abs() for one, other in pairs]).mean().item()


def measure(folder: Path, device: str) -> dict[str, float | None]:
    """Speed of a step of two full micro-batches; on a GPU the most that its tensors take, too."""
    shape, length = _TIMED[device]
    rows = random_rows(2 * _ROWS, length, seed=2)
    groups = groups_of(rows, [[-5.0] * (len(row) - _PROMPT) for row in rows])
    with Rank(make_model(folder, shape), device, _ROWS * length) as rank:
        rank.train(groups)  # the first one allocates
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
            torch.cuda.synchronize()
        began = time.perf_counter()
        done = rank.train(groups)
        if device == "cuda":
            torch.cuda.synchronize()
        seconds = time.perf_counter() - began
        limit = rank.learner.model.peak_flops
    found: dict[str, float | None] = {
        "tokens_per_s": sum(map(len, rows)) / seconds,
        "model_tflops": done.flops / seconds / 1e12,
        "mfu": done.flops / seconds / limit if limit else None,
    }
    if device == "cuda":
        training = Training(
            shape=ModelShape.of(shape | {"model_type": "qwen3"}), trainer=rank.config
        )
        found["most_gib"] = torch.cuda.max_memory_allocated() / 2**30
        found["sizing_gib"] = rank_bytes(training) / 2**30
    return found


def main(argv: Sequence[str] | None = None) -> None:
    """Print the figures of both."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", choices=tuple(_TIMED), required=True)
    device: str = parser.parse_args(argv).device
    with tempfile.TemporaryDirectory() as scratch:
        figures: dict[str, float | None] = {**compare(Path(scratch) / "small" / "model", device)}
        gc.collect()  # so that the reference takes no memory of the step that is measured
        if device == "cuda":
            torch.cuda.empty_cache()
        figures |= measure(Path(scratch) / "timed" / "model", device)
    sys.stdout.write(json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
