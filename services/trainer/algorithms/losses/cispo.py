"""CISPO: clip the importance weight and keep the gradient of every token."""

from torch import Tensor

from services.trainer.algorithms.log_ratio import ratio_of
from services.trainer.algorithms.losses.tokens import TokenLosses


def cispo_loss(
    current: Tensor, anchor: Tensor, advantages: Tensor, clip_low: float, clip_high: float
) -> TokenLosses:
    """`-sg(clip(r, 1 - low, 1 + high)) A current` with `r = exp(current - anchor)`.

    MiniMax-M1, arXiv 2506.13585, equations 4 and 5. The paper puts no lower bound on the
    weight: `clip_low: 1.0`. Clip fractions count tokens whose weight was bounded; unlike
    under PPO's clip they still carry a gradient.
    """
    ratio = ratio_of(current - anchor).detach()
    weight = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    return TokenLosses(
        loss=-weight * advantages * current,
        clipped_low=(ratio < 1.0 - clip_low).to(current.dtype),
        clipped_high=(ratio > 1.0 + clip_high).to(current.dtype),
    )
