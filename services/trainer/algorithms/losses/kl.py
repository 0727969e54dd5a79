"""KL divergence between two policies, estimated from sampled tokens, and the penalty made of it.

`d = current - other`, per token (Schulman 2020, "Approximating KL divergence"). As a penalty,
`kl.coefficient` times the estimate goes where `kl.where` says:

- `loss`: added to each token's loss, as GRPO has it (arXiv 2402.03300, equation 3). What
  counts there is the estimate's gradient: that of `k2` is the gradient of
  KL(current || reference), that of `k3` is the gradient of KL(reference || current), and that
  of `k1` is zero in expectation, so `k1` is refused unless it is weighted.
- `reward`: taken from the reward, without a gradient of its own. There `k1` is right: the
  policy gradient of `-k1` is minus the gradient of KL(current || reference). `k2` and `k3` are
  other penalties, right only near the reference. REINFORCE++ (arXiv 2501.03262) and `gae` take
  it from each token, as InstructGPT's PPO (arXiv 2203.02155, equation 2); estimators that give
  an answer one advantage take the sum over the answer, as RLOO (arXiv 2402.14740, section 2).
"""

import torch
from torch import Tensor

from services.protocol.run.kl import KlConfig
from services.trainer.algorithms.log_ratio import LOG_RATIO_LIMIT, ratio_of
from services.trainer.algorithms.losses.tokens import ScoredTokens


def k1(current: Tensor, other: Tensor) -> Tensor:
    """`d`: unbiased for KL(current || other) under tokens of `current`.

    Its gradient is zero in expectation: right as a penalty in the reward, useless as a loss.
    """
    return current - other


def k2(current: Tensor, other: Tensor) -> Tensor:
    """`d^2 / 2`: biased in value, but its gradient is that of KL(current || other)."""
    return 0.5 * (current - other).square()


def k3(current: Tensor, other: Tensor) -> Tensor:
    """`exp(-d) - 1 + d`: never negative, unbiased for KL(current || other).

    GRPO's penalty, arXiv 2402.03300, equation 4. Its gradient is that of
    KL(other || current). Below `d = -20`, where the exponential would be all of a step's loss,
    it is cut off as a ratio is; above, where it is nearly `d - 1`, nothing is.
    """
    difference = (other - current).clamp(max=LOG_RATIO_LIMIT)
    return torch.expm1(difference) - difference


def kl_from_sampled(sampled: Tensor, current: Tensor) -> Tensor:
    """Estimate of KL(sampled || current) per token, from tokens that `sampled` sampled.

    `exp(d) - 1 - d`, `d = current - sampled`; never negative. A diagnostic without gradient.
    """
    return k3(sampled, current).detach()


KL_ESTIMATES = {"k1": k1, "k2": k2, "k3": k3}


def kl_in_loss(tokens: ScoredTokens, kl: KlConfig) -> Tensor:
    """`coefficient * k(current, reference)` of each token, with its gradient.

    With `kl.weighted` times `exp(current - behaviour)`, gradient included: then every
    unbiased estimate has the gradient of KL(current || reference) too, however stale the
    tokens are (DeepSeek-V3.2, arXiv 2512.02556, section 3.1, for `k3`).

    Raises:
        ValueError: reference logprobs are missing.
    """
    if tokens.reference is None:
        raise ValueError("a KL penalty needs reference logprobs")
    estimate = KL_ESTIMATES[kl.estimator](tokens.current, tokens.reference)
    if kl.weighted:
        estimate = ratio_of(tokens.current - tokens.behaviour) * estimate
    return kl.coefficient * estimate


def kl_in_reward(sampled: Tensor, reference: Tensor, kl: KlConfig) -> Tensor:
    """`coefficient * k(sampled, reference)` of each token, without gradient.

    Args:
        sampled: logprobs of the policy that the ratio is anchored at.
        reference: logprobs of the frozen model.
        kl: coefficient and estimator.
    """
    return kl.coefficient * KL_ESTIMATES[kl.estimator](sampled, reference).detach()
