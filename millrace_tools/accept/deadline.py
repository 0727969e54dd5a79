"""The time that a stage may take."""

import time
from collections.abc import Callable

_POLL_S = 0.2


class StageLate(Exception):
    """A stage did not end in time."""


class Deadline:
    """Bounds every wait of a stage.

    Args:
        seconds: from now.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds, self._ends = seconds, time.monotonic() + seconds

    def left_s(self, what: str) -> float:
        """Seconds that are left for `what`.

        Raises:
            StageLate: there are none.
        """
        left = self._ends - time.monotonic()
        if left <= 0:
            raise StageLate(f"not in {self._seconds:g} s: {what}")
        return left

    def wait_until(self, true: Callable[[], bool], what: str, *, poll_s: float = _POLL_S) -> None:
        """Look until it is so.

        Raises:
            StageLate: it is not in time.
        """
        while not true():
            time.sleep(min(poll_s, self.left_s(what)))
