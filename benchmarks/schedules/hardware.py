"""What the scheduling benchmark has for hardware and for work, the same for every schedule."""

import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import ParamSpec, TypeVar

MEAN_TOKENS = 60
LONGEST = 11 * MEAN_TOKENS
"""As 32,768 tokens are to a mean of 3,000."""

P = ParamSpec("P")
T = TypeVar("T")


class Simulated:
    """CPU seconds that this file's own work has taken: no orchestrator is charged for them."""

    cpu_s = 0.0
    inside = False


def simulated(method: Callable[P, T]) -> Callable[P, T]:
    """Count a function of the simulation's own; what calls the orchestrator is not one."""

    @wraps(method)
    def timed(*args: P.args, **kwargs: P.kwargs) -> T:
        if Simulated.inside:
            return method(*args, **kwargs)
        Simulated.inside, began = True, time.process_time()
        try:
            return method(*args, **kwargs)
        finally:
            Simulated.cpu_s += time.process_time() - began
            Simulated.inside = False

    return timed


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """What there is.

    Attributes:
        replicas: rollout servers.
        slots: answers that each samples at a time.
        sandboxes: answers graded at a time.
        score_s: mean time to grade one, seconds.
        train_s: time of a train step, seconds.
        push_s: time from a train step's end until every replica serves it, seconds.
    """

    replicas: int
    slots: int
    sandboxes: int
    score_s: float
    train_s: float
    push_s: float

    @property
    def sequences(self) -> int:
        """Answers sampled at a time, on all replicas."""
        return self.replicas * self.slots


@dataclass(frozen=True, kw_only=True)
class Work:
    """One sample group: tokens of each answer, and seconds to grade each."""

    tokens: tuple[int, ...]
    score_s: tuple[float, ...]


class Trace:
    """How long each answer is and how long its grading takes: the same for every schedule."""

    def __init__(self, *, sigma: float, score_s: float, group_size: int, seed: int) -> None:
        self._sigma = sigma
        self._score_s = score_s
        self._size = group_size
        self._seed = seed
        self._groups: dict[int, Work] = {}

    def group(self, group_id: int) -> Work:
        """What the group of this id asks for."""
        if group_id not in self._groups:
            chance = random.Random(f"{self._seed}:{group_id}")
            mu = math.log(MEAN_TOKENS) - self._sigma**2 / 2
            drawn = (chance.lognormvariate(mu, self._sigma) for _ in range(self._size))
            self._groups[group_id] = Work(
                tokens=tuple(min(LONGEST, max(2, round(tokens))) for tokens in drawn),
                score_s=tuple(self._score_s * chance.uniform(0.5, 1.5) for _ in range(self._size)),
            )
        return self._groups[group_id]
