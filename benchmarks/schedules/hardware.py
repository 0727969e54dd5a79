"""Work of the scheduling benchmark, the same for every schedule."""

import math
import random
import time
from contextlib import ContextDecorator
from dataclasses import dataclass, field

from millrace_tools.simulation.hardware import Work

MEAN_TOKENS = 60
LONGEST = 11 * MEAN_TOKENS
"""As 32,768 tokens are to a mean of 3,000."""


class Simulated(ContextDecorator):
    """Counts the CPU seconds that the simulation's own functions take, so that no orchestrator is
    charged for them; a function that calls the orchestrator is not one."""

    cpu_s = 0.0
    _depth = 0
    _began = 0.0

    def __enter__(self) -> None:
        if not self._depth:
            self._began = time.process_time()
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth:
            self.cpu_s += time.process_time() - self._began


simulated = Simulated()


@dataclass(kw_only=True)
class Trace:
    """How long each answer is and how long its grading takes: the same for every schedule.

    Attributes:
        sigma: of the log-normal of lengths.
        score_s: mean seconds to grade an answer.
        group_size: answers of a group.
        seed: of the draws.
    """

    sigma: float
    score_s: float
    group_size: int
    seed: int
    _groups: dict[int, Work] = field(default_factory=dict)

    def group(self, group_id: int) -> Work:
        """The work of the group of this id."""
        if group_id not in self._groups:
            chance = random.Random(f"{self.seed}:{group_id}")
            mu = math.log(MEAN_TOKENS) - self.sigma**2 / 2
            drawn = (chance.lognormvariate(mu, self.sigma) for _ in range(self.group_size))
            self._groups[group_id] = Work(
                tokens=tuple(min(LONGEST, max(2, round(tokens))) for tokens in drawn),
                score_s=tuple(
                    self.score_s * chance.uniform(0.5, 1.5) for _ in range(self.group_size)
                ),
            )
        return self._groups[group_id]
