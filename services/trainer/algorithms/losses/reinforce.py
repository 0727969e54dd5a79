"""The policy gradient as it is, without a ratio or a clip."""

import torch
from torch import Tensor

from services.trainer.algorithms.losses.tokens import TokenLosses


def reinforce_loss(current: Tensor, advantages: Tensor) -> TokenLosses:
    """`-A current`: REINFORCE (Williams 1992), the loss of RLOO, arXiv 2402.14740, section 3.

    Right for tokens that the current policy sampled. For stale ones choose
    `ratio_anchor: proximal`, which multiplies by the mismatch weight.
    """
    nothing = torch.zeros_like(current, requires_grad=False)
    return TokenLosses(loss=-advantages * current, clipped_low=nothing, clipped_high=nothing)
