"""Lite PPO: the group's mean, and the batch's standard deviation."""

import numpy as np
from numpy.typing import NDArray

from services.trainer.algorithms.advantages.grpo import STD_FLOOR


def in_batch_deviations(
    centred: NDArray[np.float64], rewards: NDArray[np.float64]
) -> NDArray[np.float64]:
    """`(R_i - mean of its group) / (std + 1e-8)`, the unbiased deviation of all rewards.

    Lite PPO of "Tricks or traps?", arXiv 2508.08221. A group whose rewards hardly differ so keeps
    small advantages. Groups of equal rewards count in the deviation only if they reach the
    trainer: with a KL penalty, an entropy bonus, a teacher or `overlong_limit`. The paper's loss
    is the clipped surrogate, averaged over tokens (`aggregation: token_mean`).

    Args:
        centred: rewards of a batch minus the mean of their group.
        rewards: as they are, of the same answers.
    """
    return centred / (rewards.std(ddof=1) + STD_FLOOR)
