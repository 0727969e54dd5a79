"""The body of a client's request: bounded in size and in time."""

import json
from typing import Any

from starlette.types import Receive

from services.http import json_body
from services.router.errors import RequestFailed, unreadable_body

_NESTED = (dict, list)
_DEEPEST = 500
"""What is deeper can be read, but not by those who look at it after us: Python has a limit."""


async def read_body(receive: Receive, *, max_bytes: int, timeout_s: float) -> bytes:
    """All of it.

    Raises:
        RequestFailed: 413 for too much, 408 for too slow, 499 if the client has gone.
    """
    try:
        return await json_body.read_body(receive, max_bytes=max_bytes, timeout_s=timeout_s)
    except json_body.BodyRefused as refused:
        raise RequestFailed(refused.status, refused.kind, str(refused)) from None


def parsed(raw: bytes) -> Any:
    """What its JSON says.

    Raises:
        RequestFailed: 400, it is none.
    """
    try:
        value = json.loads(raw)
    except ValueError:
        raise unreadable_body("the body is not JSON") from None
    except RecursionError:
        raise _too_deep() from None
    # Only many brackets can be deep, and most bodies have few.
    if raw.count(b"[") + raw.count(b"{") > _DEEPEST and _is_deeper(value, _DEEPEST):
        raise _too_deep()
    return value


def _too_deep() -> RequestFailed:
    return unreadable_body(f"the body is nested more than {_DEEPEST} times")


def _is_deeper(value: Any, bound: int) -> bool:
    level = [value]
    while level and bound:
        parts = (part.values() if isinstance(part, dict) else part for part in level)
        level = [inner for part in parts for inner in part if type(inner) in _NESTED]
        bound -= 1
    return bool(level)


async def disconnected(receive: Receive) -> None:
    """Return when the client is gone; the body has been read."""
    while (await receive())["type"] != "http.disconnect":
        pass
