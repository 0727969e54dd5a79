"""MaxRL: rewards relative to the sample group, in means."""

import numpy as np
from numpy.typing import NDArray


def maxrl_advantages(rewards: NDArray[np.float64]) -> NDArray[np.float64]:
    """`(R_i - mean) / mean`, which favours prompts that are seldom solved.

    Maximum Likelihood Reinforcement Learning, arXiv 2602.02710, appendix D: for rewards of 0 and
    1 the gradient is, in expectation, that of the log of the pass rate, cut off at a power of the
    group's size. Rewards must not be negative; a group of none above 0 has nothing to learn from.
    """
    mean = rewards.mean()
    return (rewards - mean) / mean
