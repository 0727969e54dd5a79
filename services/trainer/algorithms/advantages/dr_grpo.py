"""Dr. GRPO: GRPO without its two biases."""

import numpy as np
from numpy.typing import NDArray


def dr_grpo_advantages(rewards: NDArray[np.float64]) -> NDArray[np.float64]:
    """`R_i - mean`, which does not favour groups of small variance.

    arXiv 2503.20783, section 3.2. The paper's loss is a sum of tokens over a constant
    (`aggregation: fixed_length`), which does not favour long wrong answers.
    """
    return rewards - rewards.mean()
