"""Faults at random: the same seed draws the same ones, as far as there is something to hit."""

import random
from collections.abc import Callable

from millrace_tools.chaos.script import LASTING, Deed, Fault, Target

MENU: tuple[tuple[Fault, Target], ...] = (
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
"""What a client need not notice. Not here, but in scripts: the end of a router or of Serve's
proxy, which breaks the connections through them, of the recorded sessions, and of a raylet, which
is its node's."""

LASTS_S = (1.0, 3.0, 8.0)


class Draw:
    """Draws so that every fault comes once before any comes again."""

    def __init__(self, seed: int, menu: tuple[tuple[Fault, Target], ...] = MENU) -> None:
        self._random = random.Random(seed)
        self._menu = menu
        self._bag: list[tuple[Fault, Target]] = []

    def next(self, at_s: float, may_hit: Callable[[Fault, Target], bool]) -> Deed | None:
        """The next fault that may be done now; None: none may."""
        while True:
            for drawn in self._bag:
                if may_hit(*drawn):
                    self._bag.remove(drawn)
                    return self._deed(at_s, *drawn)
            if len(self._bag) >= len(self._menu):
                return None
            # What was passed over comes first in the next round.
            self._bag += self._random.sample(self._menu, len(self._menu))

    def choose(self, count: int) -> int:
        """One of so many."""
        return self._random.randrange(count)

    def _deed(self, at_s: float, fault: Fault, target: Target) -> Deed:
        lasts = self._random.choice(LASTS_S)
        given = {"for": lasts} if fault in LASTING else {}
        return Deed.model_validate({"at": at_s, "fault": fault, "target": target} | given)
