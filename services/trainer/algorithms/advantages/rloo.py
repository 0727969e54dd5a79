"""RLOO: each answer against the mean of the others."""

import numpy as np
from numpy.typing import NDArray


def rloo_advantages(rewards: NDArray[np.float64]) -> NDArray[np.float64]:
    """`R_i - mean of R_j over j != i`, which equals `n / (n - 1) * (R_i - mean)`.

    arXiv 2402.14740, section 3. The paper's loss is the plain policy gradient of whole
    answers: `loss: reinforce` with `aggregation: fixed_length` and `fixed_length: 1`.
    """
    count = len(rewards)
    return (rewards - rewards.mean()) * (count / (count - 1))
