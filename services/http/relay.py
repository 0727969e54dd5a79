"""A request that is passed on to another server, and its answer as it comes."""

from collections.abc import Iterable, Sequence

import aiohttp
from starlette.types import Message, Scope, Send
from yarl import URL

Headers = list[tuple[bytes, bytes]]

_OF_ONE_HOP = frozenset(
    b"connection keep-alive proxy-connection proxy-authorization te trailer transfer-encoding "
    b"upgrade expect date".split()
)
"""RFC 9110, 7.6.1: for one connection, not for the next. A server writes its own date."""

_OWN_HEADERS = ("accept", "accept-encoding", "user-agent", "content-type")


def relaying_client(*, connect_s: float) -> aiohttp.ClientSession:
    """A client that adds no header of its own and changes no answer; its caller bounds the calls.

    Args:
        connect_s: how long a connection may take, seconds.
    """
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=None, connect=connect_s),
        auto_decompress=False,
        skip_auto_headers=_OWN_HEADERS,
        cookie_jar=aiohttp.DummyCookieJar(),
    )


def end_to_end(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """The headers that are not for one connection alone; names are in small letters."""
    headers = list(headers)
    named = b",".join(value for name, value in headers if name == b"connection").lower()
    dropped = _OF_ONE_HOP | {name.strip() for name in named.split(b",")}
    return [(name, value) for name, value in headers if name not in dropped]


def url_at(server: str, scope: Scope) -> URL:
    """The URL of a request at another server, byte for byte."""
    path = (scope.get("raw_path") or scope["path"].encode()).decode("ascii")
    query = scope["query_string"].decode("ascii")
    return URL(f"{server}{path}{'?' if query else ''}{query}", encoded=True)


async def relay(
    client: aiohttp.ClientSession,
    server: str,
    scope: Scope,
    body: bytes,
    send: Send,
    *,
    headers: Sequence[tuple[bytes, bytes]],
) -> None:
    """Make a request's call at another server, and send its answer piece by piece.

    Args:
        client: see `relaying_client`.
        server: URL without a path.
        scope: of the request; method, path and query are passed on as they are.
        body: of the request.
        send: of the request.
        headers: in place of those of the request.

    Raises:
        aiohttp.ClientError: the server cannot be reached, or its answer broke off.
        TimeoutError: no connection in time.
    """
    shown = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers]
    url = url_at(server, scope)
    async with client.request(
        scope["method"], url, headers=shown, data=body or None, allow_redirects=False
    ) as answer:
        raw = end_to_end((name.lower(), value) for name, value in answer.raw_headers)
        start: Message = {"type": "http.response.start", "status": answer.status, "headers": raw}
        await send(start)
        async for piece in answer.content.iter_any():
            await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})
