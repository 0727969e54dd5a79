"""Ratios of probabilities from differences of logprobs, safe in float32."""

import torch
from torch import Tensor

LOG_RATIO_LIMIT = 20.0
"""Nats beyond which a log ratio is cut off: `exp(20)` is 5e8, `exp(89)` overflows float32."""


def ratio_of(log_ratio: Tensor) -> Tensor:
    """`exp(min(max(log_ratio, -20), 20))`; beyond the limits the gradient is zero.

    A ratio of 5e8 says no more than that the two policies have nothing in common. Without
    the limit one token could make the sum of a whole step infinite. NaN stays NaN.
    """
    return torch.exp(log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT))


def beyond_limit(log_ratio: Tensor) -> Tensor:
    """1 where `ratio_of` cuts off, else 0; for counting."""
    return (log_ratio.detach().abs() > LOG_RATIO_LIMIT).to(log_ratio.dtype)
