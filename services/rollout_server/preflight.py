"""Checks before an engine starts, so that the answer is a sentence and not vLLM's traceback."""

import json
import math
from pathlib import Path
from typing import Any

from services.protocol.errors import InvalidInput
from services.protocol.model_source import model_folder, on_hub
from services.rollout_server.config import RolloutServerConfig
from services.rollout_server.quantisation import check_quantisation

GIB = 1 << 30

CPU_HEAD_DIMS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Head sizes for which vLLM's CPU attention has kernels."""

CPU_BLOCK_TOKENS = 128
"""Tokens per KV block on CPU; a sequence takes whole blocks."""

_ITEMSIZE = {"float32": 4, "bfloat16": 2, "float16": 2}


def check_model(config: RolloutServerConfig) -> None:
    """Check what the model's folder tells.

    Raises:
        InvalidInput: no such folder, a file is missing, a head size without CPU kernels, a
            context longer than the model's, a KV cache too small for one sequence, or weights
            quantised so that no new ones can be loaded.
    """
    if on_hub(config.model):
        check_quantisation(config, {})
        return
    shape = _read_shape(model_folder(config.model))
    check_quantisation(config, shape)
    if config.lora_rank is not None and not _weight_bytes(config):
        fix = "It has no *.safetensors, which an adapter is added to; leave lora_rank out."
        raise InvalidInput("model", config.model, fix)
    longest = shape.get("max_position_embeddings")
    if longest is not None and config.max_model_len > longest:
        raise InvalidInput(
            "max_model_len", config.max_model_len, f"The model's context is {longest} tokens."
        )
    if config.device == "cpu":
        _check_head_dim(config, shape)
        _check_kv_cache(config, shape)


def check_memory(config: RolloutServerConfig, *, available_bytes: int) -> None:
    """Check that a CPU replica fits into what is free on its node.

    Raises:
        InvalidInput: KV cache and weights need more than `available_bytes`.
    """
    if config.device != "cpu":
        return
    weights = _weight_bytes(config)
    needed = int(config.kv_cache_gb * GIB) + 3 * weights
    if needed > available_bytes:
        raise InvalidInput(
            "kv_cache_gb",
            config.kv_cache_gb,
            f"A replica needs {needed / GIB:.2f} GiB (KV cache, and the weights three times: "
            f"live, packed and staged) but {available_bytes / GIB:.2f} GiB are free. "
            "Lower kv_cache_gb or replicas, or free memory.",
        )


def _read_shape(folder: Path) -> dict[str, Any]:
    try:
        shape: dict[str, Any] = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise InvalidInput(
            "model", str(folder), f"Its config.json is not readable: {error}."
        ) from None
    if not any((folder / name).exists() for name in ("tokenizer.json", "tokenizer_config.json")):
        raise InvalidInput("model", str(folder), "It has no tokenizer.json.")
    return shape


def _head_dim(shape: dict[str, Any]) -> int | None:
    if shape.get("head_dim"):
        return int(shape["head_dim"])
    hidden, heads = shape.get("hidden_size"), shape.get("num_attention_heads")
    return hidden // heads if hidden and heads else None


def _check_head_dim(config: RolloutServerConfig, shape: dict[str, Any]) -> None:
    head_dim = _head_dim(shape)
    if head_dim is not None and head_dim not in CPU_HEAD_DIMS:
        raise InvalidInput(
            "model",
            config.model,
            f"Its attention heads have size {head_dim}; on CPU use one of {CPU_HEAD_DIMS}.",
        )


def _check_kv_cache(config: RolloutServerConfig, shape: dict[str, Any]) -> None:
    head_dim, layers = _head_dim(shape), shape.get("num_hidden_layers")
    heads = shape.get("num_key_value_heads") or shape.get("num_attention_heads")
    if not (head_dim and layers and heads):
        return
    per_token = 2 * layers * heads * head_dim * _ITEMSIZE[config.dtype]
    blocks = math.ceil(config.max_model_len / CPU_BLOCK_TOKENS)
    needed = per_token * CPU_BLOCK_TOKENS * blocks / config.tensor_parallel_size
    if needed > config.kv_cache_gb * GIB:
        raise InvalidInput(
            "kv_cache_gb",
            config.kv_cache_gb,
            f"One sequence of max_model_len {config.max_model_len} needs {needed / GIB:.3g} GiB.",
        )


def _weight_bytes(config: RolloutServerConfig) -> int:
    """Bytes of the checkpoint's files; 0 when there are none to learn from."""
    if on_hub(config.model):
        return 0
    return sum(path.stat().st_size for path in Path(config.model).glob("*.safetensors"))
