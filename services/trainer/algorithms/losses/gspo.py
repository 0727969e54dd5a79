"""GSPO: the ratio, and so the clip, of whole sequences."""

import torch
from torch import Tensor

from services.trainer.algorithms.log_ratio import ratio_of
from services.trainer.algorithms.losses.clip import clip_ratio
from services.trainer.algorithms.losses.tokens import ScoredTokens, TokenLosses


def gspo_surrogate(
    tokens: ScoredTokens, anchor: Tensor, clip_low: float, clip_high: float
) -> TokenLosses:
    """`-min(s A, clip(s, 1 - low, 1 + high) A)` with the geometric mean ratio of a sequence.

    `s = exp(mean_t(current_t - anchor_t))`, arXiv 2507.18071, equations 5 to 7. It is
    written as GSPO-token, equations 13 and 14, `s_t = sg(s) exp(current_t - sg(current_t))`,
    whose value and gradient are the same when all tokens of a sequence have one advantage.
    With `aggregation: sequence_mean` the sum is the paper's. Its clip distances are small,
    3e-4 and 4e-4, because a mean over many tokens moves little.
    """
    mean = tokens.mean_by_sequence(tokens.current.detach() - anchor.detach())
    ratio = ratio_of(mean) * torch.exp(tokens.current - tokens.current.detach())
    return clip_ratio(ratio, tokens.advantage, clip_low, clip_high)
