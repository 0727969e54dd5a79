"""Signals to a process, and to no other process that gets its id later."""

import os
import signal
from collections.abc import Iterable
from contextlib import suppress


def start_time(pid: int) -> int:
    """Clock ticks from the node's start to the process's, from /proc/PID/stat.

    Raises:
        FileNotFoundError, ProcessLookupError: there is no such process.
    """
    with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
        # The name before may contain blanks and brackets; proc(5) counts this field as the 22nd.
        return int(file.read().rpartition(")")[2].split()[19])


class ProcessHandles:
    """File descriptors of processes, which follow the process and not its id."""

    def __init__(self, processes: Iterable[tuple[int, int]]) -> None:
        """Open a handle of each process whose start time is the expected one.

        Args:
            processes: process id and start time of each.

        Raises:
            ProcessLookupError: all have ended.
        """
        self._handles: list[int] = []
        for pid, started in processes:
            with suppress(OSError):
                handle = os.pidfd_open(pid)
                if start_time(pid) == started:
                    self._handles.append(handle)
                else:
                    os.close(handle)
        if not self._handles:
            raise ProcessLookupError("it has ended already")

    def send(self, number: signal.Signals) -> None:
        """Send a signal to each process that still runs."""
        for handle in self._handles:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, number)
