"""The access log: a JSON line for a request that has ended, or for some of them."""

from typing import Any

from services.observability.log import Log

_LOG = Log("router")


class AccessLog:
    """Writes lines of the event `request`.

    Prompts, answers and keys are never in them.

    Args:
        share: of the requests that end well; 0 writes nothing at all, and above that all that
            do not end well are written.
    """

    def __init__(self, share: float) -> None:
        self._share, self._due = share, 0.0

    def takes(self, *, well: bool) -> bool:
        """Whether the next line is wanted; evenly spread, so that it can be tested."""
        if not self._share or not well:
            return self._share > 0
        self._due += self._share
        if self._due < 1.0:
            return False
        self._due -= 1.0
        return True

    def write(self, **fields: Any) -> None:
        """Write one line; what is None is left out."""
        _LOG.info("request", **{name: value for name, value in fields.items() if value is not None})
