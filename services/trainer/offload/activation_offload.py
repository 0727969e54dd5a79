"""Inputs of checkpointed layers in host memory between the forward and the backward pass.

A checkpointed layer saves its inputs and nothing else. Copies to the host and back go over a
stream of their own, beside the arithmetic of one layer.
"""

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint


def checkpoint_on_host(layers: nn.ModuleList, device: torch.device) -> None:
    """Have each layer recomputed in the backward pass, from inputs that wait in host memory.

    On a CPU the inputs stay where they are.

    Args:
        layers: of the decoder, before they are sharded.
        device: what they compute on.
    """
    of_device = None if device.type == "cpu" else torch.get_device_module(device)
    inputs = HostInputs(of_device) if of_device is not None else None
    for layer in layers:
        layer.forward = checkpointed(layer.forward, inputs)


def checkpointed(forward: Callable[..., Any], inputs: "HostInputs | None") -> Callable[..., Any]:
    """`forward` with its inputs handed to `inputs`, and recomputed in the backward pass."""

    def run(*args: Any, **kwargs: Any) -> Any:
        if inputs is None:
            return checkpoint(forward, *args, use_reentrant=False, **kwargs)
        # What is saved inside, checkpointing drops; only the inputs reach these hooks.
        with saved_tensors_hooks(inputs.to_host, inputs.to_device):
            return checkpoint(forward, *args, use_reentrant=False, **kwargs)

    return run


@dataclass(eq=False)
class SavedInput:
    """A layer's input that waits for the backward pass.

    Attributes:
        host: in pinned memory.
        device: where it was.
        before: what was saved last before it, which the backward pass wants next.
    """

    host: Tensor
    device: torch.device
    before: "weakref.ref[SavedInput] | None"


@dataclass
class _Copy:
    """A tensor on the device that the stream of copies reads or writes, until `done`."""

    of: SavedInput
    tensor: Tensor
    done: Any


class HostInputs:
    """Saved-tensors hooks: copies to the host, and back one layer ahead of the backward pass.

    No more than one input on its way to the host and one on its way back are on the device.
    The stream of the arithmetic waits for a copy before the memory that it reads or writes is
    let go. `Tensor.record_stream` would not bound the memory: the allocator gives such memory
    out again only when the copy has ended, and by then the host may have enqueued every layer.
    """

    def __init__(self, device_module: Any) -> None:
        """`device_module` is that of the device, such as `torch.cuda`."""
        self._device_module = device_module
        self._copies: Any = device_module.Stream()
        self._going: _Copy | None = None
        self._coming: _Copy | None = None
        self._last: weakref.ref[SavedInput] | None = None

    def to_host(self, tensor: Tensor) -> SavedInput:
        """Begin the copy of a tensor that is saved for the backward pass."""
        self._end_copies()
        tensor = tensor.detach()  # what is held here keeps no graph
        pin = self._device_module.is_available()
        host = torch.empty_like(tensor, device="cpu", pin_memory=pin)
        saved = SavedInput(host=host, device=tensor.device, before=self._last)
        self._going = _Copy(saved, tensor, self._copy(host, tensor))
        self._last = weakref.ref(saved)
        return saved

    def to_device(self, saved: SavedInput) -> Tensor:
        """The tensor again, for work on the current stream; that of the layer before is begun."""
        if self._coming is None or self._coming.of is not saved:
            self._end_copies()
            self._coming = self._begin(saved)
        tensor = self._coming.tensor
        self._end_copies()
        before = saved.before() if saved.before is not None else None
        if before is not None:
            self._coming = self._begin(before)
        return tensor

    def _begin(self, saved: SavedInput) -> _Copy:
        tensor = torch.empty_like(saved.host, device=saved.device)
        return _Copy(saved, tensor, self._copy(tensor, saved.host))

    def _copy(self, to: Tensor, source: Tensor) -> Any:
        """Copy on the other stream, after all that is enqueued by now; returns its event."""
        self._copies.wait_stream(self._device_module.current_stream())
        with self._device_module.stream(self._copies):
            to.copy_(source, non_blocking=True)
            return self._copies.record_event()

    def _end_copies(self) -> None:
        for one in (self._going, self._coming):
            if one is not None:
                self._device_module.current_stream().wait_event(one.done)
        self._going = self._coming = None
