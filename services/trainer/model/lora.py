"""LoRA: frozen linear layers with a trained difference of low rank, which can be turned off."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn import functional

from services.protocol.errors import InvalidInput
from services.trainer.config import LoraConfig

ALL = "all"

ADAPTER_PARAMETERS = ("lora_A", "lora_B")
"""Last parts of the names of trained parameters."""

PEFT_PREFIX = "base_model.model."
"""What the PEFT format puts before the name of a layer."""


class LoraLinear(nn.Linear):
    """`y = W x + b + alpha / rank * B (A x)` with W and b frozen (arXiv:2106.09685, section 4.1).

    The frozen parameters keep the names that they have in the checkpoint. A starts at random
    and B at zero, so the layer starts as the linear layer that it replaces.

    Attributes:
        lora_A: float32 `[rank, in_features]`.
        lora_B: float32 `[out_features, rank]`.
        scale: alpha / rank.
        adapted: False leaves the difference out.
    """

    own = ADAPTER_PARAMETERS
    """Names of the parameters that no checkpoint of the model has."""

    def __init__(self, linear: nn.Linear, rank: int, alpha: float) -> None:
        # On the meta device, because the parameters that it makes are replaced at once.
        super().__init__(
            linear.in_features, linear.out_features, bias=linear.bias is not None, device="meta"
        )
        self.weight, self.bias = linear.weight, linear.bias
        self.scale, self.adapted = alpha / rank, True
        device = linear.weight.device
        self.lora_A = nn.Parameter(torch.empty(rank, linear.in_features, device=device))
        self.lora_B = nn.Parameter(torch.empty(linear.out_features, rank, device=device))
        self.initialise()

    def initialise(self) -> None:
        """Fill the adapter's parameters for a new run."""
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))  # as linear layers are
        nn.init.zeros_(self.lora_B)

    def forward(self, input: Tensor) -> Tensor:
        """`[..., in_features]` to `[..., out_features]`."""
        output = functional.linear(input, self.weight, self.bias)
        if not self.adapted:
            return output
        inner = functional.linear(input, self.lora_A)
        return output + self.scale * functional.linear(inner, self.lora_B)

    @torch.no_grad()
    def merged_shard(self) -> Tensor:
        """This rank's rows of `W + alpha / rank * B A`, float32. Collective: gathers A."""
        weight, a, b = self.weight, self.lora_A, self.lora_B
        assert isinstance(weight, DTensor), "the model is sharded"
        assert isinstance(a, DTensor), "sharded with the weight"
        assert isinstance(b, DTensor), "sharded with the weight"
        # Rows of B are rows of W, and all ranks split rows of either in the same way.
        return torch.addmm(
            weight.to_local().float(), b.to_local(), a.full_tensor(), alpha=self.scale
        )


def add_lora(causal: Any, layers: nn.ModuleList, config: LoraConfig) -> None:
    """Freeze the model and give the target layers a difference to train.

    Raises:
        InvalidInput: a target is no linear layer of the decoder.
    """
    causal.requires_grad_(False)
    linear = [
        (parent, name, child)
        for layer in layers
        for parent in layer.modules()
        for name, child in parent.named_children()
        if type(child) is nn.Linear
    ]
    known = {name for _, name, _ in linear}
    for target in () if config.targets == ALL else config.targets:
        if target not in known:
            fix = f"The linear layers of this model are {', '.join(sorted(known))}."
            raise InvalidInput("trainer.lora.targets", target, fix)
    for parent, name, child in linear:
        if config.targets == ALL or name in config.targets:
            setattr(parent, name, LoraLinear(child, config.rank, config.alpha))


def lora_layers(model: nn.Module) -> Iterator[tuple[str, LoraLinear]]:
    """Every adapted layer, by its name in `model`."""
    for name, module in model.named_modules():
        if isinstance(module, LoraLinear):
            yield name, module


@contextmanager
def adapter_off(model: nn.Module) -> Iterator[None]:
    """Inside, the model is the frozen one, without a second copy of it."""
    layers = [layer for _, layer in lora_layers(model)]
    for layer in layers:
        layer.adapted = False
    try:
        yield
    finally:
        for layer in layers:
            layer.adapted = True
