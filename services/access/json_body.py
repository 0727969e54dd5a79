"""JSON that anybody may have sent, and JSON that says what was wrong with it.

A body is bounded in bytes and in time, whatever its head says of its length, and is read as
JSON alone, of which Python's parser takes more: NaN, and numbers that no number can hold.
"""

import asyncio
import json
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse

from services.protocol.errors import InvalidInput

_MIB = 1 << 20


class BodyTooLarge(ValueError):
    """The body is longer than the service takes."""


class BodyTooSlow(RuntimeError):
    """The body did not arrive in time."""


class AsciiJson(JSONResponse):
    """JSON in ASCII: half of a surrogate pair, which a client may send back to itself, cannot
    be written as UTF-8."""

    def render(self, content: Any) -> bytes:
        """See `starlette.responses.Response.render`."""
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")


async def read_body(request: Request, *, most_mb: int, timeout_s: float) -> bytes:
    """The body of a request.

    Raises:
        BodyTooLarge: it has more than `most_mb` MiB; the rest is not read.
        BodyTooSlow: it has not come within so many seconds.
    """
    parts, size = [], 0
    try:
        async with asyncio.timeout(timeout_s):
            async for part in request.stream():
                size += len(part)
                if size > most_mb * _MIB:
                    raise BodyTooLarge(f"more than {most_mb} MiB")
                parts.append(part)
    except TimeoutError:
        raise BodyTooSlow(f"{size} bytes in {timeout_s:g} s") from None
    return b"".join(parts)


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
