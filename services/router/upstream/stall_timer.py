"""One deadline for many short waits, at the price of two numbers a wait.

A timer for each wait would cost a stream more than reading its tokens.
"""

import asyncio
import math
from collections.abc import Callable


class StallTimer:
    """Calls `expire` when a wait takes too long. Must be closed.

    Args:
        expire: ends the wait; called once at most.
    """

    def __init__(self, expire: Callable[[], object]) -> None:
        self._loop, self._expire = asyncio.get_running_loop(), expire
        self._due, self._looks_at = math.inf, math.inf
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, seconds: float) -> None:
        """A wait begins that may take so long."""
        self._due = self._loop.time() + seconds
        if self._due < self._looks_at:
            self._look_at(self._due)

    def end(self) -> None:
        """The wait is over."""
        self._due = math.inf

    def close(self) -> None:
        """No wait will follow."""
        self._due = math.inf
        if self._timer is not None:
            self._timer.cancel()

    def _look_at(self, when: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._looks_at = when
        self._timer = self._loop.call_at(when, self._look)

    def _look(self) -> None:
        self._timer, self._looks_at = None, math.inf
        if self._due <= self._loop.time():
            self._expire()
        elif self._due < math.inf:
            self._look_at(self._due)
