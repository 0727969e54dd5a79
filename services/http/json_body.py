"""JSON from untrusted clients, and JSON that says what was wrong with it.

A body is bounded in bytes and in time, whatever length its head announces, and is read as
JSON alone, of which Python's parser takes more: NaN, and numbers that no number can hold.
"""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import msgspec
from starlette.responses import JSONResponse
from starlette.types import Receive

from services.protocol.errors import InvalidInput


class BodyRefused(ValueError):
    """A body that is too large or too slow, or whose client has disconnected.

    Attributes:
        status: HTTP status.
        kind: `body_too_large`, `body_too_slow` or `disconnected`.
    """

    def __init__(self, status: int, kind: str, message: str) -> None:
        self.status, self.kind = status, kind
        super().__init__(message)


class AsciiJson(JSONResponse):
    """JSON in ASCII: half of a surrogate pair, which a client may send back to itself, cannot
    be written as UTF-8."""

    def render(self, content: Any) -> bytes:
        """See `starlette.responses.Response.render`."""
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")


async def read_body(
    receive: Receive,
    *,
    max_bytes: int,
    timeout_s: float,
    refused: Callable[[int, str, str], Exception] = BodyRefused,
) -> bytes:
    """The body of a request; what follows `max_bytes` is not read.

    Raises:
        Exception: `refused`, 413 for too large, 408 for too slow, 499 if the client has
            disconnected.
    """
    parts: list[bytes] = []
    size, more = 0, True
    try:
        async with asyncio.timeout(timeout_s):
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    problem = "the client left before its request came"
                    raise refused(499, "disconnected", problem)
                part = message.get("body", b"")
                size, more = size + len(part), message.get("more_body", False)
                if size > max_bytes:
                    problem = f"the body is larger than {max_bytes} bytes"
                    raise refused(413, "body_too_large", problem)
                parts.append(part)
    except TimeoutError:
        problem = f"the body did not come within {timeout_s:g} s"
        raise refused(408, "body_too_slow", problem) from None
    return b"".join(parts)


async def disconnected(receive: Receive) -> None:
    """Return when the client is gone; the body has been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


def parsed_body(body: bytes) -> Any:
    """A body's JSON.

    Raises:
        InvalidInput: it is none.
    """
    try:
        return strict_json(body.decode("utf-8"))
    except UnicodeDecodeError as error:
        fix = f"It is not UTF-8 at byte {error.start}."
        raise InvalidInput("body", "(not text)", fix) from None
    except (ValueError, RecursionError) as error:
        raise InvalidInput("body", "(not JSON)", f"Send JSON: {error}.") from None


def strict_json(text: str) -> Any:
    """Parse JSON, without the constants NaN and Infinity that Python's parser adds to it.

    Raises:
        ValueError: it is no JSON.
        RecursionError: it is nested too deeply.
    """
    return json.loads(text, parse_constant=_refuse_constant)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def json_bytes(value: Any) -> bytes:
    """`value` as JSON, whatever text a client has sent; faster than `AsciiJson`."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:  # half a character of the client's, which only JSON can spell
        return json.dumps(value).encode()
