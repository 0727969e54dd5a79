"""Cases of a test of which `make test` tries the first, and `make test-slow` all others."""

from collections.abc import Iterable
from typing import Any

import pytest


def first_of(cases: Iterable[Any]) -> list[Any]:
    """For `parametrize`: all but the first are marked as slow. A tuple is a case's arguments."""
    first, *others = cases
    return [first, *(_slow(case) for case in others)]


def _slow(case: Any) -> Any:
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.slow)
