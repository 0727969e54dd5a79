"""GDPO: several named rewards, each in standard deviations of its group."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from services.trainer.algorithms.advantages.grpo import STD_FLOOR, grpo_advantages


def gdpo_advantages(
    rewards: Sequence[NDArray[np.float64]], weights: Sequence[float]
) -> list[NDArray[np.float64]]:
    """`A_i / (std + 1e-8)` with `A_i = sum over k of w_k (r_ik - mean_k) / (std_k + 1e-8)`.

    Group reward-decoupled normalization policy optimization, arXiv 2601.05242, section 3: mean and
    `std_k` are those of reward `k` in the group, the outer `std` is that of `A` over all answers of
    the batch, and weights apply after the normalisation (section 3.2). All are unbiased. The mean
    of `A` over the batch is 0, since that of each group is. Rewards that are equal in a group add
    exactly 0. Groups of equal rewards count only with a KL penalty, an entropy bonus or a teacher.
    The weights alone, as `rewards` with `advantage: grpo`, normalise the weighted sum instead.

    Args:
        rewards: of each group, `[n, K]`, n at least 2.
        weights: K.

    Returns:
        `[n]` for each group.
    """
    sums = [_weighted_sum(group, weights) for group in rewards]
    flat = np.concatenate(sums) if sums else np.zeros(0)
    if not flat.any():
        return sums
    scale = float(np.sqrt(np.square(flat).sum() / (len(flat) - 1))) + STD_FLOOR
    return [own / scale for own in sums]


def _weighted_sum(group: NDArray[np.float64], weights: Sequence[float]) -> NDArray[np.float64]:
    found = np.zeros(len(group))
    for column, weight in zip(group.T, weights, strict=True):
        if column.min() < column.max():
            found += weight * grpo_advantages(column)
    return found
