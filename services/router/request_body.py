"""The body of a client's request: bounded in size and in time."""

import asyncio
import json
from typing import Any

from starlette.types import Receive

from services.router.config import RouterConfig
from services.router.errors import RequestFailed, unreadable_body


async def read_body(receive: Receive, config: RouterConfig) -> bytes:
    """All of it.

    Raises:
        RequestFailed: 413 for too much, 408 for too slow, 499 if the client has gone.
    """
    try:
        async with asyncio.timeout(config.client_read_s):
            return await _whole(receive, config.max_body_bytes)
    except TimeoutError:
        message = f"the body did not come within {config.client_read_s:g} s"
        raise RequestFailed(408, "body_too_slow", message) from None


def parsed(raw: bytes) -> Any:
    """What its JSON says.

    Raises:
        RequestFailed: 400, it is none.
    """
    try:
        return json.loads(raw)
    except (ValueError, RecursionError):
        raise unreadable_body("the body is not JSON") from None


async def _whole(receive: Receive, bound: int) -> bytes:
    parts: list[bytes] = []
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise RequestFailed(499, "disconnected", "the client left before its request came")
        part = message.get("body", b"")
        size, more = size + len(part), message.get("more_body", False)
        if size > bound:
            raise RequestFailed(413, "body_too_large", f"the body is larger than {bound} bytes")
        parts.append(part)
    return b"".join(parts)
