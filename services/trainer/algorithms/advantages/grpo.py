"""GRPO: rewards relative to the sample group, in standard deviations."""

from torch import Tensor

STD_FLOOR = 1e-8
"""Keeps rewards that differ by rounding alone from being blown up to unit variance, and is too
small to be seen beside any other standard deviation: the paper has none."""


def grpo_advantages(rewards: Tensor) -> Tensor:
    """`(R_i - mean) / (std + 1e-8)` with the unbiased standard deviation of the group.

    DeepSeekMath, arXiv 2402.03300, section 4.1. The paper's loss is the clipped surrogate,
    averaged over each answer and then over answers (`aggregation: sequence_mean`).
    """
    centred = rewards - rewards.mean()
    return centred / (rewards.std() + STD_FLOOR)
