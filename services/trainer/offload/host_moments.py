"""AdamW whose moments lie in host memory and pass through the device piece by piece."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim.adamw import adamw

from services.trainer.heartbeat import HEARTBEAT

PIECE = 1 << 24
"""Elements of one parameter whose two moments are on the device at a time: 128 MiB."""

_MOMENTS = ("exp_avg", "exp_avg_sq")


class HostMomentsAdamW(torch.optim.AdamW):
    """The fused AdamW of torch, with its float32 moments in pinned host memory.

    Parameters and gradients stay on their device, and so does the arithmetic: an update changes
    the same bits as `torch.optim.AdamW(fused=True)` does. Each update copies 8 bytes a parameter
    to the device and 8 back. The state has the layout of `AdamW`, so that either loads what the
    other saved.
    """

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """One update of every parameter with a gradient; `closure` is not called."""
        devices = set()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)
                    devices.add(_local(parameter).device)
        for device in devices - {torch.device("cpu")}:
            # The host reads the moments next, for a checkpoint.
            torch.get_device_module(device).current_stream().synchronize()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what `state_dict` of this or of torch's own `AdamW` gave.

        Torch's own method would move all moments to the device of their parameter.
        """
        super().load_state_dict({**state_dict, "state": {}})
        parameters = [one for group in self.param_groups for one in group["params"]]
        keys = [key for group in state_dict["param_groups"] for key in group["params"]]
        for parameter, key in zip(parameters, keys, strict=True):
            if key in state_dict["state"]:
                held: dict[str, Tensor] = state_dict["state"][key]
                self.state[parameter] = {name: one.cpu() for name, one in held.items()}

    def _update(self, parameter: Tensor, group: dict[str, Any]) -> None:
        weight, gradient = _local(parameter), _local(parameter.grad)
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            for name in _MOMENTS:
                state[name] = _zeros_on_host(parameter, pin=weight.device.type != "cpu")
        for piece in _pieces(weight.numel()):
            HEARTBEAT.mark()
            self._update_piece(
                weight.view(-1)[piece], gradient.view(-1)[piece], state, piece, group
            )
        state["step"] += 1

    def _update_piece(
        self,
        weight: Tensor,
        gradient: Tensor,
        state: dict[str, Tensor],
        piece: slice,
        group: dict[str, Any],
    ) -> None:
        # On return the copies on the device are let go, before those of the next piece are made.
        held = [_local(state[name]).view(-1)[piece] for name in _MOMENTS]
        first, second = (one.to(weight.device, non_blocking=True) for one in held)
        adamw(
            [weight],
            [gradient],
            [first],
            [second],
            [],
            [state["step"].to(weight.device, copy=True)],  # which is counted up there
            fused=True,
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )
        # Copies are ordered with the arithmetic by the stream that both are on.
        for moment, new in zip(held, (first, second), strict=True):
            moment.copy_(new, non_blocking=True)


def _local(tensor: Tensor | None) -> Tensor:
    assert tensor is not None, "a parameter without a gradient is passed over"
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _zeros_on_host(parameter: Tensor, *, pin: bool) -> Tensor:
    """Zeros that are sharded as `parameter` is, in host memory."""
    return torch.zeros_like(parameter, dtype=torch.float32, device="cpu", pin_memory=pin)


def _pieces(count: int) -> Iterator[slice]:
    return (slice(start, start + PIECE) for start in range(0, count, PIECE))
