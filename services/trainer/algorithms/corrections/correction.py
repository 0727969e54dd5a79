"""Importance corrections: from the policy that sampled to the proximal one."""

from dataclasses import dataclass

import torch
from torch import Tensor

from services.protocol.run.algorithm import AlgorithmConfig
from services.trainer.algorithms.log_ratio import ratio_of
from services.trainer.algorithms.losses.tokens import ScoredTokens


def mismatch_ratio(tokens: ScoredTokens, proximal: Tensor, level: str) -> Tensor:
    """The mismatch ratio of each token, without gradient.

    With `d_t = proximal_t - behaviour_t` over the trained tokens of a sequence:

    - `token`: `exp(d_t)` (Yao et al. 2025, "Your efficient RL framework secretly brings
      you off-policy RL training").
    - `sequence`: `exp(sum_t d_t)`, the exact weight of a whole answer (arXiv 2110.00641
      has it per token; Liu, Li et al. 2025, "When speed kills stability", per sequence).
    - `geometric`: `exp(mean_t d_t)`, which does not grow with the length (GSPO's ratio,
      arXiv 2507.18071, equation 7).
    """
    difference = (proximal - tokens.behaviour).detach()
    if level == "sequence":
        difference = tokens.sum_by_sequence(difference)
    elif level == "geometric":
        difference = tokens.mean_by_sequence(difference)
    return ratio_of(difference)


@dataclass(frozen=True, kw_only=True)
class Correction:
    """The factor of each token's loss, and the tokens where it is not the ratio.

    Attributes:
        weight: `[N]`, without gradient.
        truncated: 1 where floor or cap was applied, else 0.
        masked: 1 where the token was taken out of the loss, else 0.
    """

    weight: Tensor
    truncated: Tensor
    masked: Tensor


def correct(ratio: Tensor, algorithm: AlgorithmConfig) -> Correction:
    """The weight of each token from its mismatch ratio.

    - `truncate`: `min(max(ratio, floor), cap)`, truncated importance sampling (Ionides 2008;
      Yao et al. 2025), which has no floor: 0. One above 0 keeps tokens in the loss that the
      proximal policy finds less likely.
    - `mask`: `ratio` where `floor <= ratio <= cap`, else 0 (IcePop, arXiv 2510.18855;
      masked importance sampling, Liu, Li et al. 2025). At level `geometric` 1 in place of
      `ratio`: the geometric mean says whether an answer is off-policy, but it is not the
      weight of anything.
    - `none`: 1.
    """
    kind, floor, cap = (
        algorithm.mismatch_correction,
        algorithm.mismatch_floor,
        algorithm.mismatch_cap,
    )
    nothing, one = torch.zeros_like(ratio), torch.ones_like(ratio)
    # A NaN is not outside: it must reach the guard and not vanish behind the mask.
    outside = (ratio < floor) | (ratio > cap)
    if kind == "none":
        return Correction(weight=one, truncated=nothing, masked=nothing)
    if kind == "truncate":
        bounded = ratio.clamp(min=floor, max=cap)
        return Correction(weight=bounded, truncated=outside.to(ratio.dtype), masked=nothing)
    inside = one if algorithm.mismatch_level == "geometric" else ratio
    return Correction(
        weight=torch.where(outside, nothing, inside),
        truncated=nothing,
        masked=outside.to(ratio.dtype),
    )
