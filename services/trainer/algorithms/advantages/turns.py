"""Credit by turn: the rewards from each turn on, relative to the same turn of the sample group."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from services.trainer.algorithms.advantages.grpo import grpo_advantages


def turn_advantages(returns: Sequence[NDArray[np.float64]]) -> list[NDArray[np.float64]]:
    """`(G_ik - mean) / (std + 1e-8)` of turn `k` of answer `i`, with `G_ik` the undiscounted sum of
    the rewards from the turn on; mean and unbiased std are those of turn `k` of all answers.

    As in the process supervision of DeepSeekMath (arXiv 2402.03300, section 4.1.3) a token earns
    what comes from its step on, relative to the group. The paper normalises the rewards of all
    steps together and then sums them, so that an answer earns by the number of its steps, and early
    steps more than late ones. Here sums are normalised, each turn beside the same turn of the
    others; an answer that has fewer turns stands there with its last. Where every answer has a
    single reward, at its end, this is `grpo_advantages`; turns that are equal get exactly 0.
    With `credit: token` each response token is a turn, counted from the first one on.

    Args:
        returns: of each answer of a sample group, its turns in order, at least one.
    """
    longest = max(map(len, returns))
    table = np.array([np.pad(one, (0, longest - len(one)), mode="edge") for one in returns])
    found = np.zeros_like(table)
    differ = table.min(axis=0) < table.max(axis=0)
    found[:, differ] = grpo_advantages(np.ascontiguousarray(table[:, differ].T)).T
    return [own[: len(one)] for own, one in zip(found, returns, strict=True)]
