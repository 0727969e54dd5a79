"""Where the time of one request goes."""

import time
from typing import Literal

Phase = Literal["queue", "first_token", "stream"]
"""`queue` for a place on a replica, until its `first_token`, and `stream` for the rest. A request
that is continued elsewhere comes back to `queue`."""


class Phases:
    """Seconds by phase; every moment since the first phase began belongs to one of them.

    Attributes:
        seconds: up to the beginning of the current phase.
    """

    __slots__ = ("_now", "_since", "seconds")

    def __init__(self) -> None:
        self.seconds: dict[Phase, float] = {}
        self._now: Phase | None = None
        self._since = 0.0

    def begin(self, phase: Phase) -> None:
        """What follows is this phase's, until the next begins."""
        if phase != self._now:
            self.end()
            self._now, self._since = phase, time.monotonic()

    def end(self) -> None:
        """The request is over; a second call does nothing."""
        if self._now is not None:
            spent = time.monotonic() - self._since
            self.seconds[self._now] = self.seconds.get(self._now, 0.0) + spent
            self._now = None
