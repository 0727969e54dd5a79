"""The time that one answer may take for all its tests together."""

import math
from collections.abc import Callable

from services.reward_service.sandbox.execution import Outcome

_IDLE_SHARE = 0.8
"""Of the time that one process may idle: what all together may idle. Less than 1, so that the tests
of a process that idled to its limit used it up, whatever little it computed."""
_START_S = 0.1
"""Of a process's wall time: no idling, but its start and end on a busy machine."""


class Budget:
    """Counts what an answer's own processes took. Time in which it waits for a core is not here.

    An answer computes: one that only waits would hold a core that others need. All its processes
    together may idle little longer than one may, and besides as long as they compute. Where
    processes crowd, each is taken to have had its share of a core, and no more is idling.

    Args:
        run_s: wall seconds of its processes, and of the checkers and tests that look at it, had
            they had a core each.
        idle_s: wall seconds that a process may idle.
        cpu_s: processor seconds of its processes; None for any.
        stretch: how many times longer a process may idle on this machine, now.
        crowd: processes for each core of this machine, now; 1 at least.

    Attributes:
        cpu_s: processor seconds that its processes took.
        problem: how it used up what it had; empty while something is left.
    """

    def __init__(
        self,
        *,
        run_s: float,
        idle_s: float,
        cpu_s: float | None = None,
        stretch: Callable[[], float] = lambda: 1.0,
        crowd: Callable[[], float] = lambda: 1.0,
    ) -> None:
        self.cpu_s = 0.0
        self.problem = ""
        self._run_s, self._most_idle_s = run_s, _IDLE_SHARE * idle_s
        self._most_cpu_s = math.inf if cpu_s is None else cpu_s
        self._stretch, self._crowd = stretch, crowd
        self._wall_s = self._idle_s = 0.0

    @property
    def left_s(self) -> float:
        """Wall seconds that are left for the next process."""
        return max(0.0, self._run_s - self._wall_s)

    def charge(self, outcome: Outcome, tests: Outcome | None = None) -> None:
        """Count a process of the answer, and the tests that called it from another jail.

        Args:
            outcome: of the answer's process.
            tests: of the tests' process, whose wall time holds that of the other.
        """
        computed_s = outcome.cpu_s + (tests.cpu_s if tests is not None else 0.0)
        self.cpu_s += outcome.cpu_s
        self._idle_s += self._take((tests or outcome).wall_s, computed_s)
        if self.cpu_s >= self._most_cpu_s:
            self.problem = f"used {self.cpu_s:.2f} s for all tests"
        elif self._idled_too_long():
            self.problem = f"waited {self._idle_s:.1f} s without computing"
        elif tests is not None and tests.killed in ("cpu", "wall"):
            self.problem = "the tests did not end on what it gave them"
        self._look_at_wall()

    def charge_checker(self, outcome: Outcome) -> None:
        """Count a process of a checker that looked at an output."""
        self._take(outcome.wall_s, outcome.cpu_s)
        self._look_at_wall()

    def close(self, problem: str) -> None:
        """Nothing is left."""
        self.problem = self.problem or problem

    def _take(self, wall_s: float, computed_s: float) -> float:
        """Count wall seconds; returns those that the process idled."""
        idle_s = wall_s - computed_s - _START_S
        if idle_s > 0:
            idle_s = max(0.0, wall_s - computed_s * self._crowd() - _START_S)
            wall_s = computed_s + idle_s + _START_S
        self._wall_s += wall_s
        return max(0.0, idle_s)

    def _idled_too_long(self) -> bool:
        most_s = self._most_idle_s + self.cpu_s
        return self._idle_s >= most_s and self._idle_s >= self._stretch() * most_s

    def _look_at_wall(self) -> None:
        if self.left_s <= 0:
            self.problem = self.problem or f"ran for {self._wall_s:.1f} s in all"
