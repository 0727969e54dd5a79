"""Which quantised engines take new weights, checked before an engine starts.

The bus delivers weights as the trainer has them. An engine with 8-bit layers quantises them while
it loads, and is refused where it could not.
"""

from collections.abc import Mapping
from typing import Any

from services.protocol.errors import InvalidInput
from services.rollout_server.config import RolloutServerConfig

ONLINE = (
    "fp8",
    "fp8_per_tensor",
    "fp8_per_channel",
    "fp8_per_block",
    "mxfp8",
    "int8_per_channel_weight_only",
)
"""Values of vLLM's `quantization` with which it quantises what it is given, to 8 bits."""

ON_CPU = "fp8_per_channel"
"""The one of those that vLLM's CPU build computes, for models without experts."""

_IN_FOLDER = "compressed-tensors"
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
_BESIDES = ("kv_cache_scheme", "transform_config", "sparsity_config")
_ROWS = {"num_bits": 8, "strategy": "channel", "symmetric": True, "dynamic": False}
_TOKENS = {"num_bits": 8, "strategy": "token", "symmetric": True, "dynamic": True}


def check_quantisation(config: RolloutServerConfig, shape: Mapping[str, Any]) -> None:
    """Check that new weights can be loaded into the engine of this configuration.

    Args:
        config: see above.
        shape: the model's `config.json`; empty if it is not known yet.

    Raises:
        InvalidInput: they cannot.
    """
    given = config.engine_args
    asked = given.get("quantization") or ("online" if given.get("quantization_config") else None)
    declared = shape.get("quantization_config") or shape.get("compression_config")
    if asked is None and declared is None:
        return
    if config.lora_rank is not None:
        fix = "Adapters and quantised engines do not go together: leave one of both out."
        raise InvalidInput("lora_rank", config.lora_rank, fix)
    if config.dtype == "float32":
        fix = "Quantised engines compute in bfloat16 or float16: set it here and for the trainer."
        raise InvalidInput("dtype", config.dtype, fix)
    if declared is not None:
        _check_folder(config, shape, declared)
    elif asked == _IN_FOLDER and not shape:
        return
    if declared is None or asked is not None:
        _check_asked(config, asked, shape, declared)


def _check_asked(
    config: RolloutServerConfig,
    asked: str | None,
    shape: Mapping[str, Any],
    declared: Mapping[str, Any] | None,
) -> None:
    fix = ""
    if declared is not None:
        if asked != _IN_FOLDER:
            fix = f"Leave it out: the model's folder asks for {_IN_FOLDER}."
    elif asked not in ONLINE:
        fix = f"No new weights can be loaded into such an engine; use one of {', '.join(ONLINE)}."
    elif config.device == "cpu" and asked != ON_CPU:
        fix = f"On CPUs vLLM computes only {ON_CPU}."
    elif config.device == "cpu" and _has_experts(shape):
        fix = "On CPUs vLLM quantises no experts: leave it out, or serve on GPUs."
    if fix:
        raise InvalidInput("engine_args.quantization", asked, fix)


def _check_folder(
    config: RolloutServerConfig, shape: Mapping[str, Any], declared: Mapping[str, Any]
) -> None:
    """Weights that are quantised in the model's folder, whose place the trainer's take."""
    method = declared.get("quant_method", "?")
    if method == _IN_FOLDER and _takes_rows(declared) and not _has_experts(shape):
        return
    online = ON_CPU if config.device == "cpu" else "fp8_per_tensor"
    raise InvalidInput(
        "model",
        config.model,
        f"Its weights are quantised ({method}) in a way in which no new ones can be loaded. Give "
        "the model in bfloat16, as the trainer has it, and for 8 bits "
        f"engine_args: {{quantization: {online}}}.",
    )


def _takes_rows(declared: Mapping[str, Any]) -> bool:
    """One scale a row of 8-bit weights, activations quantised token by token, and nothing else."""
    groups = declared.get("config_groups") or {}
    return (
        bool(groups)
        and not any(declared.get(name) for name in _BESIDES)
        and declared.get("format") in ("int-quantized", "float-quantized")
        and all(
            _has(group.get("weights"), _ROWS) and _has(group.get("input_activations"), _TOKENS)
            for group in groups.values()
        )
    )


def _has(found: Mapping[str, Any] | None, wanted: Mapping[str, Any]) -> bool:
    return found is not None and all(found.get(name) == value for name, value in wanted.items())


def _has_experts(shape: Mapping[str, Any]) -> bool:
    return any(shape.get(name) for name in _EXPERTS)
