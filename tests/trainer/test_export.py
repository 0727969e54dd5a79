"""An exported folder is the model that was trained."""

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from vllm import SamplingParams

from millrace_tools.main import main
from services.protocol.errors import InvalidInput
from services.protocol.weights.weights import Dtype
from services.trainer.checkpoints import export as export_module
from services.trainer.checkpoints.export import export
from services.trainer.checkpoints.folder import CheckpointFolder
from services.trainer.checkpoints.manifest import MANIFEST
from services.trainer.config import LoraConfig
from tests.rollout_server.conftest import SMALL, build_model, policy
from tests.rollout_server.served import serve

SEQUENCES = [[3, 17, 250, 4, 9, 9, 81], [300, 2, 44], [7] * 12]


def train(ranks: Any, model: Path, start: Any, make_batch: Any, **settings: Any) -> Any:
    """Two steps with a checkpoint of each; returns what the trainer's weights score."""
    ranks.load(model, **settings)
    ranks.call("start_run", start, 0)
    for step in (1, 2):
        ranks.call("train", make_batch(step), step - 1, step)
        ranks.call("save", step)
    parts = ranks.call("logprobs", SEQUENCES)
    return {index: values for part in parts for index, values in part.items()}


def scored_by_transformers(folder: Path) -> dict[int, list[float]]:
    model, loading = AutoModelForCausalLM.from_pretrained(
        folder, dtype="auto", output_loading_info=True
    )
    assert not any(loading.values()), loading
    scored = {}
    for index, sequence in enumerate(SEQUENCES):
        ids = torch.tensor([sequence])
        with torch.no_grad():
            logprobs = model(input_ids=ids).logits[0, :-1].float().log_softmax(-1)
        scored[index] = logprobs.gather(-1, ids[0, 1:, None])[:, 0].tolist()
    return scored


WAYS = {
    "own head": ("tiny_model", {}),
    "tied head": ("tied_model", {}),
    "adapter": ("tiny_model", {"lora": LoraConfig(rank=3, alpha=24.0)}),
}


@pytest.mark.parametrize("way", WAYS)
def test_transformers_scores_an_exported_folder_as_the_trainer_does(
    rank_groups, make_batch, make_start, tmp_path, monkeypatch, request, way
) -> None:
    fixture, settings = WAYS[way]
    model, start = request.getfixturevalue(fixture), make_start(learning_rate=1e-2)
    expected = train(rank_groups[2], model, start, make_batch, **settings)
    monkeypatch.setattr(export_module, "FILE_SIZE", 100_000)  # bytes: several files
    done = export(Path(start.checkpoint_dir), tmp_path / "out")
    assert done.path.name == "step-00000002"
    assert len(list((tmp_path / "out").glob("*.safetensors"))) > 2
    scored = scored_by_transformers(tmp_path / "out")
    untrained = scored_by_transformers(model)
    for index, values in expected.items():
        assert scored[index] == pytest.approx(values, abs=3e-6)
        assert scored[index] != pytest.approx(untrained[index], abs=1e-3)


async def test_vllm_scores_an_exported_folder_as_the_trainer_does(
    rank_groups, make_batch, make_start, tmp_path, monkeypatch
) -> None:
    folder, start, ranks = (
        build_model(tmp_path / "model"),
        make_start(learning_rate=1e-2),
        rank_groups[2],
    )
    policy(folder, seed=3).save_pretrained(folder)
    ranks.load(folder)
    ranks.call("start_run", start, 0)
    ranks.call("train", make_batch(1, vocabulary=SMALL["vocab_size"]), 0, 1)
    ranks.call("save", 1)
    export(Path(start.checkpoint_dir), tmp_path / "out")
    sequences = [[3, 17, 250, 4, 9, 9, 81], [7] * 12]
    parts = ranks.call("logprobs", sequences)
    expected = {index: values for part in parts for index, values in part.items()}
    with tempfile.TemporaryDirectory(prefix="vllm-") as sockets:  # their paths must be short
        monkeypatch.setenv("VLLM_RPC_BASE_PATH", sockets)
        # With room for an adapter, since an engine without it leaves the folder's weights alone.
        async with serve(tmp_path / "out", lora_rank=1) as served:
            for index, sequence in enumerate(sequences):
                found = await prompt_logprobs(served.engine, sequence, f"sequence-{index}")
                assert found == pytest.approx(expected[index], abs=1e-5)


async def prompt_logprobs(engine: Any, sequence: list[int], name: str) -> list[float]:
    sampling = SamplingParams(max_tokens=1, prompt_logprobs=0)
    prompt = {"prompt_token_ids": sequence}
    outputs = [one async for one in engine.generate(prompt, sampling, request_id=name)]
    entries = zip(outputs[0].prompt_logprobs[1:], sequence[1:], strict=True)
    return [entry[token].logprob for entry, token in entries]


def test_a_folder_in_another_element_type_says_so_and_is_half_as_large(
    rank_groups, tiny_model, make_batch, make_start, tmp_path
) -> None:
    start = make_start()
    train(rank_groups[2], tiny_model, start, make_batch)
    export(Path(start.checkpoint_dir), tmp_path / "whole")
    export(Path(start.checkpoint_dir) / "step-00000001", tmp_path / "half", Dtype.BFLOAT16)
    sizes = [(tmp_path / one / "model.safetensors").stat().st_size for one in ("half", "whole")]
    assert sizes[0] == pytest.approx(sizes[1] / 2, rel=0.02)
    assert json.loads((tmp_path / "half" / "config.json").read_text())["dtype"] == "bfloat16"
    assert next(AutoModelForCausalLM.from_pretrained(tmp_path / "half").parameters()).dtype is (
        torch.bfloat16
    )


def test_the_command_exports_a_run_past_a_torn_checkpoint_and_overwrites_nothing(
    rank_groups, tiny_model, make_batch, make_start, tmp_path, capfd
) -> None:
    start = make_start()
    train(rank_groups[2], tiny_model, start, make_batch)
    newest = CheckpointFolder(start.checkpoint_dir).newest_first()[0]
    (newest / MANIFEST).unlink()
    assert main(["export", str(tmp_path), str(tmp_path / "out")]) == 0
    said = capfd.readouterr()
    assert "step-00000001" in said.out
    assert "passed over step-00000002: it has no manifest.json" in said.err
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    with pytest.raises(InvalidInput, match="exists already"):
        export(tmp_path, tmp_path / "out")
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "out").iterdir()}
    with pytest.raises(InvalidInput, match="step-00000002: it has no"):
        export(newest, tmp_path / "other")
    with pytest.raises(InvalidInput, match="neither a run directory nor a checkpoint"):
        export(tmp_path / "nothing", tmp_path / "other")
    assert not (tmp_path / "other").exists()
