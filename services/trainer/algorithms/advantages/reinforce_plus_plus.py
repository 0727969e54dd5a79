"""REINFORCE++: advantages normalised over the whole batch instead of the group."""

import numpy as np
from numpy.typing import NDArray

VARIANCE_FLOOR = 1e-8


def whitened(returns: NDArray[np.float64], tokens: NDArray[np.float64]) -> NDArray[np.float64]:
    """`(G - mean) / sqrt(max(variance, 1e-8))`, mean and variance over the batch's tokens.

    arXiv 2501.03262, the global advantage normalisation of REINFORCE++. `returns` are
    rewards as they are for REINFORCE++, rewards minus their group's mean for its baseline
    variant. The variance is that of the batch, not an estimate of a larger population's.

    Args:
        returns: one per entry.
        tokens: how many trained tokens have that return.
    """
    total = tokens.sum()
    centred = returns - (returns * tokens).sum() / total
    variance = (np.square(centred) * tokens).sum() / total
    return centred / np.sqrt(max(variance, VARIANCE_FLOOR))
