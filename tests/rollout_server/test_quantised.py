"""Engines with 8-bit layers take each version as an engine would that has read it from a file.

Without a GPU: fp8 that vLLM's CPU build computes with torch, and int8 in oneDNN.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import quantize
from compressed_tensors.quantization.utils.helpers import calculate_qparams
from safetensors.torch import save_file
from transformers import Qwen3Config

from services.rollout_server.config import RolloutServerConfig
from services.rollout_server.quantisation import check_quantisation

from .conftest import SMALL, Sender, build_model, policy
from .served import PROMPT, Served, checkpoint_tensors, serve

HEADS = Qwen3Config(**{**SMALL, "num_key_value_heads": 2}, head_dim=32)
TYPES = {"int": torch.int8, "float": torch.float8_e4m3fn}


def declared(kind: str) -> dict[str, Any]:
    """What `config.json` says of weights with one scale a row."""
    bits = {"num_bits": 8, "type": kind, "symmetric": True}
    group = {
        "targets": ["Linear"],
        "weights": bits | {"strategy": "channel", "dynamic": False},
        "input_activations": bits | {"strategy": "token", "dynamic": True},
    }
    return {
        "quant_method": "compressed-tensors",
        "format": f"{kind}-quantized",
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


def by_the_library(rows: torch.Tensor, kind: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers and scales of rows, by the library whose format it is."""
    settings = QuantizationArgs(**declared(kind)["config_groups"]["group_0"]["weights"])
    rows = rows.float()
    low, high = rows.amin(1, keepdim=True), rows.amax(1, keepdim=True)
    scale, zero = calculate_qparams(low, high, settings)
    return quantize(rows, scale, zero, settings, dtype=TYPES[kind]), scale


@pytest.mark.parametrize("kind", TYPES)
def test_rows_become_what_the_library_of_the_format_makes_of_them(kind: str) -> None:
    from services.rollout_server.engine.vllm_patches.loading.quantised_load import quantised

    torch.manual_seed(1)
    rows = (torch.randn(16, 48) * torch.logspace(-4, 2, 16)[:, None]).bfloat16()
    rows[3] = 0.0
    numbers, scale = quantised(rows, TYPES[kind])
    expected, expected_scale = by_the_library(rows, kind)
    assert torch.equal(scale, expected_scale)
    assert torch.equal(numbers.float(), expected.float())


def with_declared(folder: Path, kind: str | None) -> Path:
    """A model whose folder says so of its weights."""
    build_model(folder, config=HEADS)
    if kind is not None:
        file = folder / "config.json"
        shape = json.loads(file.read_text()) | {"quantization_config": declared(kind)}
        file.write_text(json.dumps(shape))
    return folder


@pytest.mark.parametrize(
    ("kind", "asked", "expected"),
    [
        (None, {}, None),
        (None, {"quantization": "fp8_per_channel"}, "fp8_per_channel"),
        ("int", {}, "compressed-tensors"),
    ],
)
def test_vllm_says_whether_an_engine_will_be_quantised(
    tmp_path: Path, kind: str | None, asked: dict[str, Any], expected: str | None
) -> None:
    from vllm.engine.arg_utils import AsyncEngineArgs

    from services.rollout_server.engine.engine_arguments import server_arguments

    folder = str(with_declared(tmp_path, kind))
    settings = {"dtype": "bfloat16", "max_model_len": 64, "engine_args": asked}
    config = RolloutServerConfig.model_validate({"model": folder} | settings)
    made = AsyncEngineArgs.from_cli_args(server_arguments(config)).create_engine_config()
    check_quantisation(config, made.model_config.hf_config.to_dict())
    assert made.model_config.quantization == expected


async def served_tokens(served: Served) -> tuple[list[int], list[float]]:
    """An answer and its logprobs, of whatever version."""
    from vllm import SamplingParams

    sampling = SamplingParams(max_tokens=40, ignore_eos=True, logprobs=0, seed=1)
    async for output in served.engine.generate({"prompt_token_ids": PROMPT}, sampling, "one"):
        answer = output.outputs[0]
    found = zip(answer.token_ids, answer.logprobs, strict=True)
    return list(answer.token_ids), [entry[token].logprob for token, entry in found]


async def pushed_and_fresh(
    folder: Path, sender: Sender, kind: str | None, **settings: Any
) -> tuple[Any, Any]:
    """Answers of an engine after three pushes, and of one that read the last version's file."""
    with_declared(folder, kind)
    plain = build_model(folder / "plain", config=HEADS)
    async with serve(folder, dtype="bfloat16", **settings) as served:
        served.dtype, served.folder = torch.bfloat16, plain
        for seed in (2, 1, 2):
            await served.push(sender, seed=seed)
        pushed = await served_tokens(served)
    tensors = {}
    for name, tensor in checkpoint_tensors(policy(plain, 2, torch.bfloat16)).items():
        tensors[name] = tensor.contiguous()
        if kind is not None and name.endswith("_proj.weight"):
            tensors[name], tensors[f"{name}_scale"] = by_the_library(tensor, kind)
    save_file(tensors, folder / "model.safetensors")
    settings["engine_args"] = settings.get("engine_args", {}) | {"load_format": "auto"}
    async with serve(folder, dtype="bfloat16", **settings) as served:
        return pushed, await served_tokens(served)


async def test_an_engine_that_quantises_to_fp8_serves_what_one_does_that_read_a_file(
    tmp_path: Path, sender: Sender
) -> None:
    settings = {"engine_args": {"quantization": "fp8_per_channel"}}
    pushed, fresh = await pushed_and_fresh(tmp_path, sender, None, **settings)
    assert pushed == fresh


async def test_weights_become_the_int8_of_a_quantised_folder_on_every_worker(
    tmp_path: Path, sender: Sender
) -> None:
    pushed, fresh = await pushed_and_fresh(tmp_path, sender, "int", tensor_parallel_size=2)
    assert pushed == fresh
