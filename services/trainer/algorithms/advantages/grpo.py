"""GRPO: rewards relative to the sample group, in standard deviations."""

import numpy as np
from numpy.typing import NDArray

STD_FLOOR = 1e-8
"""Keeps rewards that differ by rounding alone from being blown up to unit variance, and is too
small to be seen beside any other standard deviation: the paper has none."""


def grpo_advantages(rewards: NDArray[np.float64]) -> NDArray[np.float64]:
    """`(R_i - mean) / (std + 1e-8)` with the unbiased standard deviation of the group.

    DeepSeekMath, arXiv 2402.03300, section 4.1. The paper's loss is the clipped surrogate,
    averaged over each answer and then over answers (`aggregation: sequence_mean`).

    Args:
        rewards: float64 `[..., n]`, of one group or of several of the same size.
    """
    centred = rewards - rewards.mean(axis=-1, keepdims=True)
    return np.asarray(centred / (rewards.std(axis=-1, ddof=1, keepdims=True) + STD_FLOOR))
