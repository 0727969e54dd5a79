"""Random faults: the same seed draws the same ones from the same choice of targets."""

import random
from collections.abc import Callable

from millrace_tools.chaos.script import LASTING, Fault, FaultSpec, Target

_TARGETS = {
    Fault.KILL: "replica engine rank orchestrator trainer bus reward grader",
    Fault.FREEZE: "replica rank bus orchestrator router reward grader",
    Fault.SLOW: "replica rank reward",
    Fault.CORRUPT: "push",
    Fault.DROP: "push",
}
CANDIDATES = tuple(
    (fault, Target(name)) for fault, names in _TARGETS.items() for name in names.split()
)
"""Faults that no client need notice. Only scripts have the end of a router or of Serve's proxy,
which breaks the connections through them, of the recorded sessions, and of a raylet, which ends
its node."""

DURATIONS_S = (1.0, 3.0, 8.0)


class RandomFaults:
    """Draws faults so that each comes once before any comes again."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._queue: list[tuple[Fault, Target]] = []

    def next(self, at_s: float, allowed: Callable[[Fault, Target], bool]) -> FaultSpec | None:
        """The next fault that is allowed now; None: none is."""
        while True:
            for drawn in self._queue:
                if allowed(*drawn):
                    self._queue.remove(drawn)
                    fault, target = drawn
                    given = {"at": at_s, "fault": fault, "target": target}
                    seconds = self._random.choice(DURATIONS_S)  # drawn for every fault
                    lasts = {"for": seconds} if fault in LASTING else {}
                    return FaultSpec.model_validate(given | lasts)
            if len(self._queue) >= len(CANDIDATES):
                return None
            # Those that were not allowed come first in the next round.
            self._queue += self._random.sample(CANDIDATES, len(CANDIDATES))

    def choose(self, count: int) -> int:
        """A random index below `count`."""
        return self._random.randrange(count)
