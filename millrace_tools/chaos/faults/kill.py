"""kill -9."""

import signal
from typing import Any

from millrace_tools.chaos.faults.aim import Aim


class Kill:
    """Of the process itself; what is below it must notice."""

    def __init__(self, order: dict[str, Any]) -> None:
        self._aim = Aim(order["lives"][:1])

    def begin(self) -> None:
        """Kill.

        Raises:
            ProcessLookupError: it has ended already.
        """
        if not self._aim.count:
            raise ProcessLookupError("it has ended already")
        self._aim.send(signal.SIGKILL)

    def tick(self) -> float:
        """Nothing is left to do."""
        return 0.0

    def end(self) -> None:
        """A killed process stays dead; Serve and Ray bring another."""
