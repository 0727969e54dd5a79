"""Quantised engines into which no new weights can be loaded are refused before they start."""

import json
from pathlib import Path
from typing import Any

import pytest

from services.protocol.errors import InvalidInput
from services.rollout_server.config import RolloutServerConfig
from services.rollout_server.preflight import check_model
from services.rollout_server.quantisation import ONLINE

from .test_preflight import SHAPE
from .test_quantised import declared

INT8 = declared("int")


def check(folder: Path, shape: dict[str, Any] | None = None, **changes: Any) -> None:
    (folder / "config.json").write_text(json.dumps(SHAPE | (shape or {})))
    (folder / "tokenizer.json").write_text("{}")
    settings = {"model": str(folder), "dtype": "bfloat16", "kv_cache_gb": 1.0}
    check_model(RolloutServerConfig.model_validate(settings | changes))


def asked(quantization: str, **more: Any) -> dict[str, Any]:
    return {"engine_args": {"quantization": quantization} | more}


@pytest.mark.parametrize("name", ONLINE)
def test_what_vllm_quantises_by_itself_is_taken_on_gpus(tmp_path: Path, name: str) -> None:
    check(tmp_path, device="cuda", **asked(name))


@pytest.mark.parametrize("kind", ["int", "float"])
def test_a_folder_with_a_scale_a_row_is_taken(tmp_path: Path, kind: str) -> None:
    check(tmp_path, {"quantization_config": declared(kind)})
    check(tmp_path, {"quantization_config": declared(kind)}, **asked("compressed-tensors"))


@pytest.mark.parametrize(
    ("changes", "field", "problem"),
    [
        (asked("fp8_per_tensor"), "engine_args.quantization", "only fp8_per_channel"),
        (asked("torchao"), "engine_args.quantization", "use one of fp8,"),
        ({"engine_args": {"quantization_config": {"moe": "mxfp4"}}}, "quantization", "'online'"),
        (asked("fp8_per_channel") | {"dtype": "float32"}, "dtype", "bfloat16 or float16"),
        (asked("fp8_per_channel") | {"lora_rank": 8}, "lora_rank", "leave one of both out"),
        (asked("torchao") | {"model": "hf://owner/name"}, "engine_args.quantization", "use one"),
    ],
)
def test_other_quantisation_is_refused(
    tmp_path: Path, changes: dict[str, Any], field: str, problem: str
) -> None:
    with pytest.raises(InvalidInput, match=problem) as caught:
        check(tmp_path, **changes)
    assert field in caught.value.field


def test_experts_are_quantised_on_gpus_only(tmp_path: Path) -> None:
    check(tmp_path, {"num_experts": 8}, device="cuda", **asked("fp8"))
    with pytest.raises(InvalidInput, match="no experts"):
        check(tmp_path, {"num_experts": 8}, **asked("fp8_per_channel"))


def group(**changes: Any) -> dict[str, Any]:
    """A folder's declaration with changes of its weights."""
    found = json.loads(json.dumps(INT8))
    found["config_groups"]["group_0"]["weights"] |= changes
    return found


@pytest.mark.parametrize(
    "shape",
    [
        {"quantization_config": {"quant_method": "awq", "bits": 4}},
        {"quantization_config": {"quant_method": "gptq", "bits": 8}},
        {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}},
        {"quantization_config": group(num_bits=4)},
        {"quantization_config": group(strategy="tensor")},
        {"quantization_config": group(symmetric=False)},
        {"quantization_config": INT8 | {"format": "pack-quantized"}},
        {"quantization_config": INT8 | {"kv_cache_scheme": {"num_bits": 8}}},
        {"quantization_config": INT8, "num_experts": 8},
    ],
)
def test_a_folder_that_is_quantised_otherwise_is_refused_with_what_to_give_instead(
    tmp_path: Path, shape: dict[str, Any]
) -> None:
    with pytest.raises(InvalidInput, match="fp8_per_channel") as caught:
        check(tmp_path, shape)
    assert (caught.value.field, caught.value.value) == ("model", str(tmp_path))


def test_what_only_the_folder_can_tell_is_left_to_the_replica(tmp_path: Path) -> None:
    check(tmp_path, model="hf://owner/name", **asked("compressed-tensors"))
    with pytest.raises(InvalidInput, match="use one of"):
        check(tmp_path, **asked("compressed-tensors"))


def test_a_quantisation_beside_that_of_the_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="Leave it out") as caught:
        check(tmp_path, {"quantization_config": INT8}, **asked("fp8_per_channel"))
    assert caught.value.field == "engine_args.quantization"
