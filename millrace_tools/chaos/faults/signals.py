"""Faults by signals: a killed, a frozen and a slowed process."""

import signal

from millrace_tools.chaos.faults.fault_action import FaultAction
from millrace_tools.chaos.faults.process_handles import ProcessHandles

PERIOD_S = 0.2


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
