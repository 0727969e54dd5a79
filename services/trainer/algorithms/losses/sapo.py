"""SAPO: a soft gate in place of a clip."""

import torch
from torch import Tensor

from services.trainer.algorithms.log_ratio import ratio_of
from services.trainer.algorithms.losses.tokens import TokenLosses


def sapo_loss(
    current: Tensor,
    anchor: Tensor,
    advantages: Tensor,
    gate_positive: float,
    gate_negative: float,
) -> TokenLosses:
    """`-(4 / tau) sigmoid(tau (r - 1)) A` with `r = exp(current - anchor)`.

    Soft Adaptive Policy Optimization, arXiv 2511.20347. `tau` is `gate_positive` where
    `A > 0`, else `gate_negative`. A token's gradient is that of `r A` times
    `1 / cosh(tau (r - 1) / 2)^2`: whole at `r = 1`, and falling smoothly on both sides, the faster
    the larger `tau`. The paper's values are 1.0 and 1.05, with `aggregation: sequence_mean`.
    Nothing is clipped, so clip fractions are 0.
    """
    ratio = ratio_of(current - anchor.detach())
    tau = torch.full_like(ratio, gate_negative).masked_fill(advantages > 0, gate_positive).detach()
    gate = torch.sigmoid(tau * (ratio - 1.0)) * (4.0 / tau)
    nothing = torch.zeros_like(current, requires_grad=False)
    return TokenLosses(loss=-gate * advantages, clipped_low=nothing, clipped_high=nothing)
