"""AdamW with 8-bit moments, by torchao; only `moments: 8bit` imports this module."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torchao.optim import AdamW8bit
from torchao.optim.adam import single_param_adam
from torchao.optim.subclass_8bit import OptimState8bit

PIECE = 1 << 22
"""Elements of one parameter that are updated at a time: torchao's arithmetic takes 53 bytes of each
besides, where torch does not compile it."""


class EightBitAdamW(AdamW8bit):
    """torchao's AdamW, which computes in float32 and keeps moments as 8-bit codes, with a scale for
    each block of 256 (Dettmers et al., "8-bit Optimizers via Block-wise Quantization", section 2).

    A shard of less than 4096 elements, or not of whole blocks, keeps float32 moments. The state has
    the layout of `torch.optim.AdamW(fused=True)`, so that either loads what the other saved.
    torchao's own step compiles, which needs a C++ compiler; this one makes the same update without.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter] | Sequence[dict[str, Any]],
        *,
        lr: float,
        betas: tuple[float, float],
        eps: float = 1e-8,
        weight_decay: float,
    ) -> None:
        settings: dict[str, Any] = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
        }
        plain = torch.optim.AdamW(parameters, **settings, fused=True)
        super().__init__(plain.param_groups, **settings)
        for group in self.param_groups:
            group["lr"] = lr  # of which torchao makes a tensor

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:
        """One update of every parameter with a gradient; `closure` is not called."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)

    def _update(self, parameter: nn.Parameter, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device)
            state["exp_avg"] = self._new_buffer(parameter, signed=True)
            state["exp_avg_sq"] = self._new_buffer(parameter, signed=False)
        state["step"] += 1
        whole = (parameter.detach(), parameter.grad, state["exp_avg"], state["exp_avg_sq"])
        weight, gradient, first, second = (_flat(one) for one in whole)
        for start in range(0, weight.numel(), PIECE):
            piece = slice(start, min(start + PIECE, weight.numel()))
            single_param_adam(
                weight[piece],
                gradient[piece],
                state["step"],
                first[piece],
                second[piece],
                None,  # no amsgrad
                group["lr"],
                *group["betas"],
                group["weight_decay"],
                group["eps"],
                IS_ADAMW=True,
                BF16_STOCHASTIC_ROUND=False,
            )


def _flat(tensor: Tensor | None) -> Tensor:
    """This rank's shard in one dimension, in which pieces begin at a block."""
    assert tensor is not None, "a parameter without a gradient is passed over"
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).view(-1)


@OptimState8bit.implements(torch.ops.aten.new_empty.default)
def _new_empty(func: Any, types: Any, args: Any, kwargs: Any) -> Tensor:
    """Begins a copy for a checkpoint, whose attributes torch copies next, one by one."""
    moment = args[0]
    codes = func(moment.codes, *args[1:], **kwargs)
    return OptimState8bit(codes, moment.scale, moment.qmap, moment.signed, moment.dtype)
