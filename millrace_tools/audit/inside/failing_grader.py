"""Stands in for a user's grader."""

from typing import Any


def fails(completion: str, **arguments: Any) -> float:
    """A grader whose model, file or server is away.

    Raises:
        ConnectionError: always.
    """
    raise ConnectionError("failed on purpose by the audit")
