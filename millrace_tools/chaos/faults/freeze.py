"""A process stands still: as after a long garbage collection, or a host that is paged out."""

import signal
from typing import Any

from millrace_tools.chaos.faults.aim import Aim

_FOREVER_S = 3600.0


class Freeze:
    """SIGSTOP to a process and all below it, SIGCONT at the end."""

    def __init__(self, order: dict[str, Any]) -> None:
        self._aim = Aim(order["lives"])

    def begin(self) -> None:
        """Stop them.

        Raises:
            ProcessLookupError: all have ended already.
        """
        if not self._aim.count:
            raise ProcessLookupError("it has ended already")
        self._aim.send(signal.SIGSTOP)

    def tick(self) -> float:
        """Seconds until it wants to do something again."""
        return _FOREVER_S

    def end(self) -> None:
        """Let them go on."""
        self._aim.send(signal.SIGCONT)
