"""How rewards add up to one."""

import math
from collections.abc import Iterable


def reward_sum(rewards: Iterable[float]) -> float:
    """The sum, rounded once: 0.7, 0.2 and 0.1 make 1, as a passed answer has.

    It is no finite number where rewards are too large.
    """
    given = list(rewards)
    try:
        return math.fsum(given)
    except (OverflowError, ValueError):  # too large, or infinities of both signs
        return float(sum(given))
