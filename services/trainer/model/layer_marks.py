"""Marks of progress at each decoder layer, so that a long micro-batch is not taken for a hang."""

from typing import Any

import torch
from torch import Tensor, nn

from services.trainer.heartbeat import HEARTBEAT


def mark_layers(layers: nn.ModuleList) -> None:
    """Mark the end of every layer's forward pass and the beginning of its backward pass."""
    for layer in layers:
        layer.register_forward_hook(_after_forward)


def _after_forward(layer: nn.Module, args: Any, output: Any) -> None:
    states = output if isinstance(output, Tensor) else output[0]
    _mark(states)
    if states.requires_grad:
        states.register_hook(_mark)


def _mark(states: Tensor) -> None:
    if states.device.type != "cuda":
        HEARTBEAT.mark()
        return
    # The host runs ahead of the device, whose own progress counts.
    event = torch.cuda.Event()
    event.record()
    HEARTBEAT.mark(event)
