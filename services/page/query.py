"""What a request asks for, checked."""

import math
from collections.abc import Mapping

from services.page.ledger_reading import ENDINGS, SORTS, GroupQuery
from services.page.timeline_reading import LATEST
from services.page.trajectory_index import TrajectoryQuery
from services.protocol.errors import InvalidInput

_MOST_ROWS = 200
_LARGEST = 2**53
_LONGEST_TEXT = 200

Params = Mapping[str, str]


def whole_number(
    params: Params, name: str, default: int, *, least: int = 0, most: int = _LARGEST
) -> int:
    """A whole number.

    Raises:
        InvalidInput: it is none, or out of bounds.
    """
    text = params.get(name, str(default))
    good = text.isascii() and text.isdigit() and len(text) < 18
    if not good or not least <= int(text) <= most:
        raise InvalidInput(name, text, f"Give a number from {least} to {most}.")
    return int(text)


def a_time(params: Params, name: str) -> float | None:
    """Seconds; None where nothing is given.

    Raises:
        InvalidInput: it is no number.
    """
    text = params.get(name, "")
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= LATEST:  # nor a NaN
        raise InvalidInput(name, text, "Give seconds since 1970.")
    return value


def _maybe_number(params: Params, name: str) -> int | None:
    return whole_number(params, name, 0) if params.get(name) else None


def _one_of(params: Params, name: str, choices: tuple[str, ...]) -> str:
    value = params.get(name, "")
    if value and value not in choices:
        raise InvalidInput(name, value, f"Give one of {', '.join(choices)}.")
    return value


def group_query(params: Params) -> GroupQuery:
    """Sample groups.

    Raises:
        InvalidInput: a parameter does not fit.
    """
    return GroupQuery(
        status=_one_of(params, "status", ENDINGS) or None,
        step=_maybe_number(params, "step"),
        task=params.get("task", "")[:_LONGEST_TEXT],
        sort=_one_of(params, "sort", tuple(SORTS)) or "newest",
        offset=whole_number(params, "offset", 0),
        limit=whole_number(params, "limit", 50, most=_MOST_ROWS),
    )


def trajectory_query(params: Params) -> TrajectoryQuery:
    """Trajectories.

    Raises:
        InvalidInput: a parameter does not fit.
    """
    return TrajectoryQuery(
        step=_maybe_number(params, "step"),
        group=_maybe_number(params, "group"),
        verdict=params.get("verdict", "")[:_LONGEST_TEXT],
        mixed=params.get("mixed", "") == "true",
        offset=whole_number(params, "offset", 0),
        limit=whole_number(params, "limit", 50, most=_MOST_ROWS),
    )
