"""Signals to one process and to no other that gets its number later."""

import os
import signal
from collections.abc import Iterable
from contextlib import suppress

from millrace_tools.chaos.start_time import started


class Aim:
    """Processes held by file descriptors, which follow the process and not its number."""

    def __init__(self, lives: Iterable[tuple[int, int]]) -> None:
        """Take hold of those that still are who they were.

        Args:
            lives: process id and start time of each, the one to be hit first in front.
        """
        self._held: list[int] = []
        for pid, since in lives:
            with suppress(OSError):
                held = os.pidfd_open(pid)
                if started(pid) == since:
                    self._held.append(held)
                else:
                    os.close(held)

    @property
    def count(self) -> int:
        """How many are there."""
        return len(self._held)

    def send(self, number: signal.Signals, *, first_only: bool = False) -> None:
        """Send a signal to all of them, or to the first; one that has ended is passed over."""
        for held in self._held[: 1 if first_only else None]:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(held, number)
