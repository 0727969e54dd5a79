"""DPPO: PPO's surrogate with a bound on probabilities in place of one on ratios."""

import torch
from torch import Tensor

from services.trainer.algorithms.log_ratio import ratio_of
from services.trainer.algorithms.losses.clip import bounded_where_bad
from services.trainer.algorithms.losses.tokens import TokenLosses


def dppo_loss(
    current: Tensor,
    anchor: Tensor,
    advantages: Tensor,
    clip_low: float,
    clip_high: float,
    dual_clip: float | None,
) -> TokenLosses:
    """`-M r A` with `r = exp(current - anchor)`, without the tokens that have moved too far.

    With `p = exp(current) - exp(anchor)`, the change of the sampled token's probability, `M` is 0
    where `A > 0` and `p > high`, and where `A < 0` and `p < -low`, else 1: the binary total
    variation of DPPO, arXiv 2602.04879, with a bound for each direction. A rare token
    may so become many times as likely, where PPO's clip would stop it, and a likely one may not
    lose much. The paper's bound is 0.15. `dual_clip` as for PPO's clip: a token of a negative
    advantage that was rare for `anchor` would else have an unbounded gradient.
    """
    anchor = anchor.detach()
    ratio = ratio_of(current - anchor)
    moved = current.detach().exp() - anchor.exp()
    low = (advantages < 0) & (moved < -clip_low)
    high = (advantages > 0) & (moved > clip_high)
    loss = -ratio * advantages
    losses = TokenLosses(
        loss=torch.where(low | high, torch.zeros_like(loss), loss),
        clipped_low=low.to(ratio.dtype),
        clipped_high=high.to(ratio.dtype),
    )
    return bounded_where_bad(losses, ratio, advantages, dual_clip)
