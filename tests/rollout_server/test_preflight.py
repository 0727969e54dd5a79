"""Bad input is refused before an engine starts, with field, value and fix."""

import json
from pathlib import Path
from typing import Any

import pytest

from services.protocol.errors import InvalidInput
from services.protocol.model_source import name_or_path
from services.rollout_server.config import RolloutServerConfig
from services.rollout_server.preflight import (
    GIB,
    check_memory,
    check_model,
)

SHAPE = {
    "head_dim": 32,
    "hidden_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "num_hidden_layers": 2,
    "max_position_embeddings": 4096,
}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(SHAPE))
    (tmp_path / "tokenizer.json").write_text("{}")
    return tmp_path


def config(model: Path | str, **changes: Any) -> RolloutServerConfig:
    return RolloutServerConfig.model_validate({"model": str(model)} | changes)


def test_a_model_that_fits_is_accepted(model: Path) -> None:
    check_model(config(model))
    check_memory(config(model), available_bytes=GIB)


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no such folder") as caught:
        check_model(config(tmp_path / "nowhere"))
    assert caught.value.field == "model"


def test_a_name_on_the_hub_is_not_looked_for_on_disk() -> None:
    check_model(config("hf://owner/name"))
    assert name_or_path("hf://owner/name") == "owner/name"


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json"])
def test_a_folder_without_a_needed_file_is_refused(model: Path, missing: str) -> None:
    (model / missing).unlink()
    with pytest.raises(InvalidInput, match=missing):
        check_model(config(model))


def test_a_context_longer_than_the_models_is_refused(model: Path) -> None:
    with pytest.raises(InvalidInput, match="4096") as caught:
        check_model(config(model, max_model_len=5000))
    assert caught.value.field == "max_model_len"


def test_a_head_size_without_cpu_kernels_is_refused_on_cpu_only(model: Path) -> None:
    (model / "config.json").write_text(json.dumps(SHAPE | {"head_dim": 24}))
    with pytest.raises(InvalidInput, match="size 24"):
        check_model(config(model))
    check_model(config(model, device="cuda"))


def test_a_kv_cache_too_small_for_one_sequence_is_refused(model: Path) -> None:
    per_token = 2 * 2 * 1 * 32 * 4
    exact = per_token * 2048 / GIB
    check_model(config(model, max_model_len=2048, kv_cache_gb=exact))
    with pytest.raises(InvalidInput, match="max_model_len 2048") as caught:
        check_model(config(model, max_model_len=2048, kv_cache_gb=exact * 0.99))
    assert caught.value.field == "kv_cache_gb"


def test_too_little_memory_is_refused_with_what_is_needed(model: Path) -> None:
    (model / "model.safetensors").write_bytes(b"0" * 1024)
    with pytest.raises(InvalidInput, match=r"0\.25 GiB are free"):
        check_memory(config(model, kv_cache_gb=0.5), available_bytes=GIB // 4)
    check_memory(config(model, kv_cache_gb=0.5), available_bytes=GIB // 2 + 3 * 1024)
    with pytest.raises(InvalidInput):
        check_memory(config(model, kv_cache_gb=0.5), available_bytes=GIB // 2 + 3 * 1024 - 1)


def test_an_unknown_key_is_refused(model: Path) -> None:
    with pytest.raises(InvalidInput, match="No such key"):
        RolloutServerConfig.from_data({"model": str(model), "replica": 2}, source="test")
