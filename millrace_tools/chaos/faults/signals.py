"""Faults by signals: a killed, a frozen and a slowed process.

A signal reaches the process itself, and no other process that gets its id later.
"""

import os
import signal
from collections.abc import Iterable
from contextlib import suppress

from millrace_tools.chaos.faults.fault_action import FaultAction

PERIOD_S = 0.2


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


class Kill(FaultAction):
    """SIGKILL to the process itself; its children must notice. Serve and Ray start another."""

    def begin(self) -> None:
        """Kill the process."""
        ProcessHandles(self.order["processes"][:1]).send(signal.SIGKILL)


class Freeze(FaultAction):
    """SIGSTOP to a process and its descendants, SIGCONT at the end: a long garbage collection."""

    def begin(self) -> None:
        """Stop them."""
        self._handles = ProcessHandles(self.order["processes"])
        self._handles.send(signal.SIGSTOP)

    def end(self) -> None:
        """Continue them."""
        self._handles.send(signal.SIGCONT)


class Slow(Freeze):
    """Stops and continues several times a second: a host with a noisy neighbour."""

    _stopped = True

    def tick(self) -> float:
        """Change over; returns the seconds until the next change."""
        self._stopped = not self._stopped
        self._handles.send(signal.SIGSTOP if self._stopped else signal.SIGCONT)
        runs_s = PERIOD_S * self.order["share"]
        return PERIOD_S - runs_s if self._stopped else float(runs_s)
