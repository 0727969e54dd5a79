"""Calls of the router's own endpoints, for requests that are made of others."""

import asyncio
import json
from contextlib import suppress
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope

from services.http.json_body import json_bytes
from services.router.errors import RequestFailed
from services.router.request.client_request import REQUEST_ID_HEADER

_OF_THE_OUTER = {REQUEST_ID_HEADER.encode(), b"content-length"}


async def inner_call(endpoint: ASGIApp, scope: Scope, body: dict[str, Any]) -> dict[str, Any]:
    """The answer of an endpoint to a request that does not stream.

    Args:
        endpoint: serves it, as if a client had sent it.
        scope: of the client's request; its key, its session and what it needs are those of this
            one. Its id is not: `body` has the id.
        body: what is asked.

    Raises:
        RequestFailed: the endpoint's own error.
    """
    headers = [one for one in scope["headers"] if one[0].lower() not in _OF_THE_OUTER]
    status, told, parts = 0, Headers(), list[bytes]()

    async def send(message: Message) -> None:
        nonlocal status, told
        if message["type"] == "http.response.start":
            status, told = message["status"], Headers(raw=message["headers"])
        parts.append(message.get("body", b""))

    await endpoint({**scope, "headers": headers}, again(json_bytes(body), _no_end), send)
    raw = b"".join(parts)
    if status != 200:
        failure = RequestFailed.passed_on(status, raw)
        with suppress(KeyError, ValueError):
            failure.retry_after_s = int(told["retry-after"])
        raise failure
    answer: dict[str, Any] = json.loads(raw)
    return answer


def again(raw: bytes, receive: Receive) -> Receive:
    """A body that was read already, and what comes after it."""
    body: list[Message] = [{"type": "http.request", "body": raw, "more_body": False}]

    async def received() -> Message:
        return body.pop() if body else await receive()

    return received


async def _no_end() -> Message:
    """An inner call has no client that could disconnect: it is cancelled."""
    never: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
    return await never
