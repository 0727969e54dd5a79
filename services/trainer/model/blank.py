"""A transformers model without memory: everything is on the meta device."""

import re
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from services.protocol.errors import InvalidInput
from services.protocol.model_source import name_or_path
from services.trainer.config import TrainerConfig


def blank_model(model: str, dtype: torch.dtype) -> Any:
    """The causal model that a configuration names, with parameters of `dtype`.

    Raises:
        InvalidInput: its weights are quantized.
        OSError: it is missing.
        ValueError: it is no causal model.
    """
    config = AutoConfig.from_pretrained(name_or_path(model), trust_remote_code=False)
    if getattr(config, "quantization_config", None) is not None:
        fix = "Its weights are quantized; give the model in bfloat16 or float32."
        raise InvalidInput("trainer.model", model, fix)
    with torch.device("meta"):
        causal: Any = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            config, dtype=dtype, attn_implementation="eager", trust_remote_code=False
        )
    # As transformers does when it loads: half precision costs these too much.
    for pattern in causal._keep_in_fp32_modules_strict or ():
        for module_name, module in causal.named_modules():
            for key, value in module.named_parameters(recurse=False):
                if re.search(pattern, f"{module_name}.{key}"):
                    setattr(module, key, nn.Parameter(value.detach().float()))
            for key, buffer in module.named_buffers(recurse=False):
                if re.search(pattern, f"{module_name}.{key}") and buffer.is_floating_point():
                    setattr(module, key, buffer.float())
    return causal


def checkpoint_buffers(causal: nn.Module) -> dict[str, Tensor]:
    """Numbers in a model's checkpoint that are no parameters, by name, such as the bias by which
    DeepSeek-V3 and GLM-4-MoE choose experts. Nobody trains them, but no engine can do without."""
    return {
        f"{prefix}.{key}" if prefix else key: buffer
        for prefix, module in causal.named_modules()
        for key, buffer in module.named_buffers(recurse=False)
        if key not in module._non_persistent_buffers_set and buffer.is_floating_point()
    }


def refuse_unsendable(causal: nn.Module, config: TrainerConfig) -> None:
    """Refuse a model with buffers that would lose precision on their way to rollout servers.

    Raises:
        InvalidInput: one has another element type than parameters are sent in, or float32.
    """
    if config.lora is not None and config.lora.push == "adapter":
        return
    for name, buffer in checkpoint_buffers(causal).items():
        if buffer.dtype not in (torch.float32, getattr(torch, config.dtype)):
            found = str(buffer.dtype).removeprefix("torch.")
            fix = (
                f"Its buffer {name} is {found}, and buffers are sent in float32 or {config.dtype} "
                "(trainer.dtype). Train another model, or an adapter (trainer.lora.push: adapter)."
            )
            raise InvalidInput("trainer.model", config.model, fix)
