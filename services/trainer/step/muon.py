"""Muon for the matrices of decoder layers and AdamW for the rest, as one optimizer."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Replicate

from services.protocol.errors import InvalidInput
from services.trainer.config import TrainerConfig
from services.trainer.heartbeat import HEARTBEAT


class MuonWithAdamW(torch.optim.AdamW):
    """torch's AdamW, and torch's Muon for matrices, of which each rank may hold a part.

    Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks", with the step
    size of Moonlight, arXiv 2502.16982, section 2.2: `0.2 sqrt(max(rows, columns))` times the
    orthogonalised direction, so that one learning rate suits both optimizers.

    The momentum is sharded as the parameters are. A direction needs the whole matrix: it is
    gathered in bfloat16, in which Newton-Schulz computes, and every rank computes it alike. On any
    number of ranks the same gradients so make the same update.
    """

    def __init__(
        self,
        matrices: Sequence[nn.Parameter],
        others: Sequence[dict[str, Any]],
        *,
        momentum: float,
        **adamw: Any,
    ) -> None:
        """The `others` are parameter groups, for AdamW."""
        groups: list[dict[str, Any]] = [*others, {"params": matrices, "momentum": momentum}]
        super().__init__(groups, **adamw)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """One update of every parameter with a gradient; `closure` is not called."""
        groups = self.param_groups
        *others, matrices = groups
        for parameter in matrices["params"]:
            if parameter.grad is not None:
                HEARTBEAT.mark()
                self._turn(parameter, parameter.grad, matrices)
        self.param_groups = others  # AdamW's own
        try:
            torch.optim.AdamW.step(self)
        finally:
            self.param_groups = groups

    def _turn(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            # AdamW, which loads this state too, asks each for the number of its updates.
            state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            state["momentum_buffer"] = torch.zeros_like(parameter)
        state["step"] += 1
        momentum, rate = group["momentum"], group["lr"]
        mean = state["momentum_buffer"].lerp_(gradient, 1.0 - momentum)
        direction = _orthogonal(gradient.lerp(mean, momentum))
        parameter.mul_(1.0 - rate * group["weight_decay"]).add_(direction, alpha=-rate)


def refuse_muon(config: TrainerConfig) -> None:
    """Say what Muon does not go with.

    Raises:
        InvalidInput: an adapter, 8-bit moments or an offload.
    """
    fix = ""
    if config.lora is not None:
        fix = "It is for whole matrices, and trainer.lora trains factors: use adamw."
    elif config.moments == "8bit":
        fix = "Its momentum is float32: use adamw, or trainer.moments: float32."
    elif config.offload != "none":
        fix = "Its momentum is where the ranks compute, not in host memory: use adamw, or "
        fix += f"trainer.offload: none in place of {config.offload}."
    if fix:
        raise InvalidInput("algorithm.optimizer", "muon", fix)


def _orthogonal(step: Tensor) -> Tensor:
    """Muon's direction for a momentum of the whole matrix, scaled, and sharded as it is.

    torch's Muon without a momentum of its own turns a matrix of zeros into minus the direction.
    """
    held = step.bfloat16()
    whole = held.full_tensor() if isinstance(held, DTensor) else held
    moved = nn.Parameter(torch.zeros_like(whole, dtype=torch.float32))
    moved.grad = whole.float()
    plain: dict[str, Any] = {"weight_decay": 0.0, "momentum": 0.0, "nesterov": False}
    torch.optim.Muon([moved], lr=1.0, adjust_lr_fn="match_rms_adamw", **plain).step()
    direction = moved.detach().neg_()
    if not isinstance(step, DTensor):
        return direction
    copies = [Replicate()] * step.device_mesh.ndim
    same = DTensor.from_local(direction, step.device_mesh, copies, run_check=False)
    return same.redistribute(placements=step.placements)
