"""Policy losses: pure functions of per-token tensors, shape `[N]`, response tokens only.

Logprobs are natural logs. `current` is under the weights being trained, `behaviour` from
the engine that sampled, `proximal` recomputed at the start of the update. Sums over tokens
are divided elsewhere, by token counts that span ranks and micro-batches.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from services.protocol.trainer import AlgorithmConfig


@dataclass(frozen=True, kw_only=True)
class TokenLosses:
    """The loss of each token, and what the clip did.

    Attributes:
        loss: to be minimised, carries the gradient.
        clipped_low: 1 where the lower clip took the gradient away, else 0.
        clipped_high: the same for the upper clip.
    """

    loss: Tensor
    clipped_low: Tensor
    clipped_high: Tensor


def clipped_surrogate(
    current: Tensor, anchor: Tensor, advantages: Tensor, clip_low: float, clip_high: float
) -> TokenLosses:
    """`-min(r A, clip(r, 1 - low, 1 + high) A)` with `r = exp(current - anchor)`.

    PPO, arXiv 1707.06347, equation 7; a larger upper distance is the clip-higher of DAPO,
    arXiv 2503.14476, section 3.1. `anchor` is the centre of the trust region.
    """
    ratio = torch.exp(current - anchor.detach())
    clipped = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    low = (advantages < 0) & (ratio < 1.0 - clip_low)
    high = (advantages > 0) & (ratio > 1.0 + clip_high)
    return TokenLosses(
        loss=-torch.minimum(ratio * advantages, clipped * advantages),
        clipped_low=low.to(current.dtype),
        clipped_high=high.to(current.dtype),
    )


def mismatch_weights(proximal: Tensor, behaviour: Tensor, cap: float) -> Tensor:
    """`min(exp(proximal - behaviour), cap)`, without gradient.

    The importance weight from the sampling engine to the proximal policy, truncated at the
    token level (truncated importance sampling, Yao et al. 2025).
    """
    return torch.exp(proximal - behaviour).clamp(max=cap).detach()


def policy_losses(
    current: Tensor,
    behaviour: Tensor,
    proximal: Tensor | None,
    advantages: Tensor,
    algorithm: AlgorithmConfig,
) -> TokenLosses:
    """The loss of each token under `algorithm`.

    With `ratio_anchor: behaviour` the clip is centred on the policy that sampled the
    token, so the trust region also covers staleness. With `proximal` it is decoupled PPO
    (arXiv 2110.00641): clip around the proximal policy, times the mismatch weight.

    Args:
        current: carries the gradient.
        behaviour: as recorded when the token was sampled.
        proximal: needed for `ratio_anchor: proximal` only.
        advantages: one per token.
        algorithm: clip distances and cap.

    Raises:
        ValueError: proximal logprobs are missing.
    """
    low, high = algorithm.clip_low, algorithm.clip_high
    if algorithm.ratio_anchor == "behaviour":
        return clipped_surrogate(current, behaviour, advantages, low, high)
    if proximal is None:
        raise ValueError("ratio_anchor 'proximal' needs proximal logprobs")
    surrogate = clipped_surrogate(current, proximal, advantages, low, high)
    weights = mismatch_weights(proximal, behaviour, algorithm.mismatch_cap)
    return TokenLosses(
        loss=weights * surrogate.loss,
        clipped_low=surrogate.clipped_low,
        clipped_high=surrogate.clipped_high,
    )


def kl_behaviour(current: Tensor, behaviour: Tensor) -> Tensor:
    """Estimate of KL(behaviour || current) per token: `exp(d) - 1 - d`, `d = current - behaviour`.

    Never negative and unbiased for tokens sampled from the behaviour policy (the k3
    estimator, Schulman 2020). A diagnostic; it carries no gradient.
    """
    difference = (current - behaviour).detach()
    return torch.expm1(difference) - difference
