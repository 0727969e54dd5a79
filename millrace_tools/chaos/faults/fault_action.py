"""A fault as its process plays it."""

from typing import Any

IDLE_S = 3600.0


class FaultAction:
    """Begins, may act again while it lasts, and ends.

    Args:
        order: the fault's fields, with `processes` (process id and start time of each) and
            `folder`.
    """

    def __init__(self, order: dict[str, Any]) -> None:
        self.order = order

    def begin(self) -> None:
        """Do it.

        Raises:
            OSError: it cannot be done; nothing is left to undo.
        """
        raise NotImplementedError

    def tick(self) -> float:
        """Act again while it lasts; returns the seconds until the next call."""
        return IDLE_S

    def end(self) -> None:
        """Undo it; safe where the process has ended."""
