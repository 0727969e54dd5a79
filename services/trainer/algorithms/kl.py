"""Estimates of the KL divergence from tokens that one of the two policies sampled.

`d = current - other`, per token (Schulman 2020, "Approximating KL divergence").

Only diagnostics use them so far. The trainer holds no reference model yet, so there is no key
for a penalty, and one that is given is refused as unknown; `ScoredTokens.reference` is where
the logprobs of one will come in.
"""

import torch
from torch import Tensor

from services.trainer.algorithms.log_ratio import LOG_RATIO_LIMIT


def k1(current: Tensor, other: Tensor) -> Tensor:
    """`d`: unbiased for KL(current || other) under tokens of `current`.

    Its gradient is zero in expectation: right as a penalty in the reward, useless as a loss.
    """
    return current - other


def k2(current: Tensor, other: Tensor) -> Tensor:
    """`d^2 / 2`: biased in value, but its gradient is that of KL(current || other)."""
    return 0.5 * (current - other).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).square()


def k3(current: Tensor, other: Tensor) -> Tensor:
    """`exp(-d) - 1 + d`: never negative, unbiased for KL(current || other).

    GRPO's penalty, arXiv 2402.03300, equation 4. Its gradient is that of
    KL(other || current).
    """
    difference = (other - current).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    return torch.expm1(difference) - difference


def kl_from_sampled(sampled: Tensor, current: Tensor) -> Tensor:
    """Estimate of KL(sampled || current) per token, from tokens that `sampled` sampled.

    `exp(d) - 1 - d`, `d = current - sampled`; never negative. A diagnostic without gradient.
    """
    return k3(sampled, current).detach()


KL_ESTIMATES = {"k1": k1, "k2": k2, "k3": k3}
