"""Random faults: the same seed draws the same ones from the same choice of targets."""

import random
from collections.abc import Callable

from millrace_tools.chaos.script import LASTING, Fault, FaultSpec, Target

CANDIDATES: tuple[tuple[Fault, Target], ...] = (
    (Fault.KILL, Target.REPLICA),
    (Fault.KILL, Target.ENGINE),
    (Fault.KILL, Target.RANK),
    (Fault.KILL, Target.ORCHESTRATOR),
    (Fault.KILL, Target.TRAINER),
    (Fault.KILL, Target.BUS),
    (Fault.KILL, Target.REWARD),
    (Fault.KILL, Target.GRADER),
    (Fault.FREEZE, Target.REPLICA),
    (Fault.FREEZE, Target.RANK),
    (Fault.FREEZE, Target.BUS),
    (Fault.FREEZE, Target.ORCHESTRATOR),
    (Fault.FREEZE, Target.ROUTER),
    (Fault.FREEZE, Target.REWARD),
    (Fault.FREEZE, Target.GRADER),
    (Fault.SLOW, Target.REPLICA),
    (Fault.SLOW, Target.RANK),
    (Fault.SLOW, Target.REWARD),
    (Fault.CORRUPT, Target.PUSH),
    (Fault.DROP, Target.PUSH),
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
                    return self._spec(at_s, *drawn)
            if len(self._queue) >= len(CANDIDATES):
                return None
            # Those that were not allowed come first in the next round.
            self._queue += self._random.sample(CANDIDATES, len(CANDIDATES))

    def choose(self, count: int) -> int:
        """A random index below `count`."""
        return self._random.randrange(count)

    def _spec(self, at_s: float, fault: Fault, target: Target) -> FaultSpec:
        seconds = self._random.choice(DURATIONS_S)
        given = {"for": seconds} if fault in LASTING else {}
        return FaultSpec.model_validate({"at": at_s, "fault": fault, "target": target} | given)
