"""A process that gets a share of the time only: as on a host with a noisy neighbour."""

import signal
from typing import Any

from millrace_tools.chaos.faults.freeze import Freeze

PERIOD_S = 0.2


class Slow(Freeze):
    """Stopped and let go on in turn, several times a second."""

    def __init__(self, order: dict[str, Any]) -> None:
        super().__init__(order)
        self._runs_s = PERIOD_S * order["share"]
        self._stopped = True

    def tick(self) -> float:
        """Change over; seconds until the next change."""
        self._stopped = not self._stopped
        self._aim.send(signal.SIGSTOP if self._stopped else signal.SIGCONT)
        return PERIOD_S - self._runs_s if self._stopped else self._runs_s
