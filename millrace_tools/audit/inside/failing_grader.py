"""Stands in for a user's grader."""

import time
from typing import Any

_LONG_S = 86_400.0


def fails(completion: str, **arguments: Any) -> float:
    """A grader whose model, file or server is away.

    Raises:
        ConnectionError: always.
    """
    raise ConnectionError("failed on purpose by the audit")


def hangs(completion: str, **arguments: Any) -> float:
    """A grader whose server takes the question and says nothing."""
    time.sleep(_LONG_S)
    return 0.0
