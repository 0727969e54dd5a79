"""The clipped surrogate of PPO, which GRPO, Dr. GRPO, DAPO and REINFORCE++ share."""

from dataclasses import replace

import torch
from torch import Tensor

from services.trainer.algorithms.log_ratio import ratio_of
from services.trainer.algorithms.losses.tokens import TokenLosses


def clipped_surrogate(
    current: Tensor,
    anchor: Tensor,
    advantages: Tensor,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None,
) -> TokenLosses:
    """`-min(r A, clip(r, 1 - low, 1 + high) A)` with `r = exp(current - anchor)`.

    PPO, arXiv 1707.06347, equation 7; a larger upper distance is the clip-higher of DAPO,
    arXiv 2503.14476, section 3.1. `anchor` is the centre of the trust region. With `dual_clip`
    `c`, where `A < 0`: `-max(min(...), c A)` (Ye et al., arXiv 1912.09729, equation 5), or one
    token that has become far more likely would be all of a step's gradient.
    """
    ratio = ratio_of(current - anchor.detach())
    losses = clip_ratio(ratio, advantages, clip_low, clip_high)
    return bounded_where_bad(losses, ratio, advantages, dual_clip)


def clip_ratio(ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float) -> TokenLosses:
    """`-min(r A, clip(r, 1 - low, 1 + high) A)` for a ratio that is there already."""
    clipped = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    low = (advantages < 0) & (ratio < 1.0 - clip_low)
    high = (advantages > 0) & (ratio > 1.0 + clip_high)
    return TokenLosses(
        loss=-torch.minimum(ratio * advantages, clipped * advantages),
        clipped_low=low.to(ratio.dtype),
        clipped_high=high.to(ratio.dtype),
    )


def bounded_where_bad(
    losses: TokenLosses, ratio: Tensor, advantages: Tensor, dual_clip: float | None
) -> TokenLosses:
    """`min(loss, -c A)` where `A < 0`, whose gradient is 0 above a ratio of `c = dual_clip`."""
    if dual_clip is None:
        return losses
    bound = -dual_clip * advantages
    above = (advantages < 0) & (ratio > dual_clip)
    return replace(
        losses,
        loss=torch.where(advantages < 0, torch.minimum(losses.loss, bound), losses.loss),
        clipped_high=losses.clipped_high + above.to(ratio.dtype),
    )
