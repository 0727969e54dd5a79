"""Advantages: how much better a trajectory did than the others of its sample group."""

from collections.abc import Sequence
from typing import Literal

import torch

STD_FLOOR = 1e-4
"""Keeps a group whose rewards hardly differ from being blown up to unit variance."""


def group_advantages(rewards: Sequence[float], kind: Literal["grpo", "dr_grpo"]) -> list[float]:
    """One advantage per trajectory of a sample group, the same for all of its tokens.

    - `grpo`: `(R_i - mean) / (std + 1e-4)` with the unbiased standard deviation
      (DeepSeekMath, arXiv 2402.03300, section 4.1).
    - `dr_grpo`: `R_i - mean`, which does not favour groups of small variance
      (arXiv 2503.20783, section 3.2).

    A group of equal rewards gets exactly 0.0, whatever rounding does to its mean.

    Args:
        rewards: one per trajectory, at least two.
        kind: which of the two.

    Raises:
        ValueError: fewer than two rewards; a group of one has no baseline.
    """
    if len(rewards) < 2:
        raise ValueError(f"a sample group needs at least two rewards, not {len(rewards)}")
    if min(rewards) == max(rewards):
        return [0.0] * len(rewards)
    values = torch.tensor(rewards, dtype=torch.float64)
    centred = values - values.mean()
    if kind == "grpo":
        centred = centred / (values.std() + STD_FLOOR)
    return centred.tolist()
