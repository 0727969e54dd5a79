"""Weights of layers that hold 8 bits: computed while they are loaded, from those that were sent.

Where vLLM quantises by itself (`quantization: fp8_per_channel`) its loaders take what was sent.
The layers of a model whose folder says that it is quantised (compressed-tensors) take integers or
fp8 numbers and one scale a row. Whole rows are quantised, before a worker cuts out its part, so
that the numbers are those of a quantised checkpoint.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from vllm.model_executor.kernels.linear.scaled_mm.cpu import CPUInt8ScaledMMLinearKernel
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

STEPS = {torch.int8: 127.5, torch.float8_e4m3fn: 448.0}
"""Half the range of a type: the scale of a row is its largest element divided by that."""


def quantise_on_load(model: torch.nn.Module) -> set[str]:
    """Wrap the loaders of a model that is about to be loaded; returns names of the parameters for
    which no tensor will come: the scales of rows."""
    computed = set()
    for name, layer in model.named_modules():
        weight, scale = (getattr(layer, one, None) for one in ("weight", "weight_scale"))
        if isinstance(weight, Tensor) and scale is not None and weight.dtype in STEPS:
            # vLLM loads into the same parameters each time, with the loaders of the time before.
            load: Any = weight.weight_loader  # type: ignore[attr-defined]
            if not hasattr(load, "quantises"):
                weight.weight_loader = _quantising(layer, load)  # type: ignore[attr-defined]
                _keep_scales(layer)
            computed.add(f"{name}.weight_scale")
    return computed


def quantised(rows: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Each row as numbers of `dtype` and a scale, which make the row again: rounded to nearest,
    symmetric, as compressed-tensors does.

    Args:
        rows: of floating-point numbers, [N, K].
        dtype: one of `STEPS`.

    Returns:
        [N, K] of `dtype`, and float32 [N, 1].
    """
    rows = rows.float()
    scale = rows.abs().amax(dim=1, keepdim=True) / STEPS[dtype]
    scale[scale == 0] = torch.finfo(torch.float32).eps
    numbers = rows / scale
    if dtype is torch.int8:
        numbers = numbers.round_()
        return numbers.clamp_(-128, 127).to(dtype), scale
    return numbers.clamp_(-STEPS[dtype], STEPS[dtype]).to(dtype), scale


def _quantising(layer: Any, load: Callable[..., Any]) -> Callable[..., Any]:
    # Wrapped under its own name, by which vLLM finds its own loader below.
    @functools.wraps(load)
    def loader(parameter: Tensor, loaded: Tensor, *part: Any, **named: Any) -> Any:
        """Load the part of a fused layer, or all of a layer, and its scales."""
        device = get_layerwise_info(layer).restore_device
        numbers, scale = quantised(loaded.to(device), parameter.dtype)
        load(parameter, numbers, *part, **named)
        return layer.weight_scale.weight_loader(layer.weight_scale, scale, *part, **named)

    loader.quantises = True  # type: ignore[attr-defined]
    return loader


def _keep_scales(layer: Any) -> None:
    """Keep the scales that oneDNN reads where they lay when it packed the weights.

    vLLM's reload drops them: it copies them to where those of the first load were.
    """
    kernel: Any = getattr(getattr(layer, "scheme", None), "kernel", None)
    if not isinstance(kernel, CPUInt8ScaledMMLinearKernel):
        return
    pack = kernel.process_weights_after_loading

    def pack_and_keep(layer: Any) -> None:
        pack(layer)
        kernel.kept_scales = layer.weight_scale

    kernel.process_weights_after_loading = pack_and_keep
