"""Masks that take whole answers out of the loss, beside any correction of tokens."""

import torch
from torch import Tensor

from services.protocol.run.sequence_mask import SequenceMaskConfig
from services.trainer.algorithms.corrections.correction import mismatch_ratio
from services.trainer.algorithms.losses.tokens import ScoredTokens


def mask_sequences(tokens: ScoredTokens, mask: SequenceMaskConfig) -> Tensor | None:
    """1 for each token of an answer that is left out of the loss, else 0; None without a mask.

    - `geometric_floor`, `geometric_cap`: answers whose geometric mean of the mismatch ratio,
      `exp(mean_t(proximal_t - behaviour_t))`, is outside: Liu, Li et al. 2025, "When speed kills
      stability", with the mean in place of the product, which does not grow with the length.
      The tokens that are left can still be truncated or masked one by one.
    - `negative_kl`: answers with `A < 0` and `mean_t(behaviour_t - current_t)` above it:
      off-policy sequence masking, DeepSeek-V3.2, arXiv 2512.02556, section 3.1. It holds for
      every update anew, since `current` moves. Where tokens of an answer have different
      advantages, those with `A >= 0` stay.

    A mean that is NaN is not outside: its loss must reach the guard.

    Raises:
        ValueError: proximal logprobs are missing.
    """
    found = []
    if mask.geometric:
        if tokens.proximal is None:
            raise ValueError("sequence_mask.geometric_* need proximal logprobs")
        mean = mismatch_ratio(tokens, tokens.proximal, "geometric")
        cap = torch.inf if mask.geometric_cap is None else mask.geometric_cap
        found.append((mean < mask.geometric_floor) | (mean > cap))
    if mask.negative_kl is not None:
        gap = tokens.mean_by_sequence((tokens.behaviour - tokens.current).detach())
        found.append((tokens.advantage < 0) & (gap > mask.negative_kl))
    if not found:
        return None
    return torch.stack(found).any(0).to(tokens.behaviour.dtype)
