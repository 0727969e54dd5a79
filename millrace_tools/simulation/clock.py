"""Simulated time for simulations of discrete events."""

import heapq
from collections.abc import Callable


class Clock:
    """Simulated seconds, and what happens at them; what is due at one time happens in order."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0

    def at(self, when: float, happens: Callable[[], None]) -> None:
        """Have something happen, at once if the time has passed."""
        self._number += 1
        heapq.heappush(self._events, (max(when, self.now), self._number, happens))

    def after(self, seconds: float, happens: Callable[[], None]) -> None:
        """Have something happen so many seconds from now."""
        self.at(self.now + seconds, happens)

    def step(self) -> None:
        """Go on to the next time at which something happens, and let all of it happen."""
        self.now = self._events[0][0]
        while self._events and self._events[0][0] == self.now:
            heapq.heappop(self._events)[2]()

    def run(self) -> None:
        """Go on until nothing is left to happen."""
        while self._events:
            self.step()
