"""Requests for other applications of Serve that come to the router's own port."""

import asyncio
from collections.abc import Iterable

import aiohttp
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from yarl import URL

from services.observability.log import Log
from services.router.config import RouterConfig
from services.router.errors import RequestFailed
from services.router.http.json_bytes import json_bytes
from services.router.http.request_body import disconnected, read_body

FRONT = "millrace.front"
"""In the scope of a request that came to the router's own port."""

OPEN_PATHS = ("/page", "/page/", "/page/static/*", "/-/healthz", "/-/routes")
"""What needs no key of the router's: files of the page without anything of a run, and probes."""

_LOG = Log("router")
_LOOK_S = 2.0
_LOOK_TIMEOUT_S = 5.0
_HOP_BY_HOP = frozenset(
    b"connection keep-alive proxy-connection te trailer transfer-encoding upgrade date".split()
)
"""RFC 9110, 7.6.1: for one connection, not for the next. The router writes its own date."""


class OtherApplications:
    """Middleware that passes requests on to Serve's proxy where another application has the path.

    Only requests from the router's own port: those from the proxy would come back.

    Args:
        app: serves everything else.
        config: the router's settings.
        proxy: where Serve's proxy of this node answers.
    """

    def __init__(self, app: ASGIApp, config: RouterConfig, proxy: str) -> None:
        self._app, self._config, self._proxy = app, config, proxy
        self._prefixes: tuple[str, ...] = ("/-/",)
        self._client: aiohttp.ClientSession | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or the application's life, during which routes are followed."""
        if scope["type"] == "lifespan":
            await self._live(scope, receive, send)
        elif FRONT in scope and f"{scope['path']}/".startswith(self._prefixes):
            await self._pass_on(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _live(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=None, connect=self._config.connect_s),
            auto_decompress=False,
            skip_auto_headers=("accept", "accept-encoding", "user-agent", "content-type"),
            cookie_jar=aiohttp.DummyCookieJar(),
        ) as self._client:
            follower = asyncio.create_task(self._follow_routes(), name="serve_routes")
            try:
                await self._app(scope, receive, send)
            finally:
                follower.cancel()
                await asyncio.gather(follower, return_exceptions=True)

    async def _follow_routes(self) -> None:
        """Learn which paths other applications have, from Serve's own list."""
        assert self._client is not None
        limit = aiohttp.ClientTimeout(total=_LOOK_TIMEOUT_S)
        while True:
            try:
                async with self._client.get(f"{self._proxy}/-/routes", timeout=limit) as answer:
                    routes: dict[str, str] = await answer.json(content_type=None)
                found = tuple(f"{prefix.rstrip('/')}/" for prefix in routes if prefix != "/")
                self._prefixes = ("/-/", *found)
            except (aiohttp.ClientError, TimeoutError, ValueError) as problem:
                _LOG.warning("serve_routes_unknown", problem=repr(problem))
            await asyncio.sleep(_LOOK_S)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        config, began = self._config, False

        async def noting(message: Message) -> None:
            nonlocal began
            began = True
            async with asyncio.timeout(config.client_write_s):
                await send(message)

        try:
            body = await read_body(
                receive, most_bytes=config.max_body_bytes, within_s=config.client_read_s
            )
            passing = asyncio.create_task(self._answer(scope, body, noting))
            gone = asyncio.create_task(disconnected(receive))
            await _first_of(passing, gone)
        except RequestFailed as failure:
            await _refuse(send, failure)
        except (aiohttp.ClientError, TimeoutError) as problem:
            _LOG.warning("application_unreachable", path=scope["path"][:200], problem=repr(problem))
            if began:
                return  # uvicorn closes the connection, so the client sees that a piece is missing
            message = f"what serves {scope['path']:.200} cannot be reached now; try again"
            await _refuse(send, RequestFailed(502, "unreachable", message, retry_after_s=1))

    async def _answer(self, scope: Scope, body: bytes, send: Send) -> None:
        assert self._client is not None
        path = (scope.get("raw_path") or scope["path"].encode()).decode("ascii")
        query = scope["query_string"].decode("ascii")
        url = URL(f"{self._proxy}{path}{'?' if query else ''}{query}", encoded=True)
        headers = [(k.decode("latin-1"), v.decode("latin-1")) for k, v in _kept(scope["headers"])]
        async with self._client.request(
            scope["method"], url, headers=headers, data=body or None, allow_redirects=False
        ) as answer:
            raw = _kept((name.lower(), value) for name, value in answer.raw_headers)
            await send({"type": "http.response.start", "status": answer.status, "headers": raw})
            async for piece in answer.content.iter_any():
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _kept(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value in headers if name not in _HOP_BY_HOP]


async def _first_of(work: asyncio.Task[None], gone: asyncio.Task[None]) -> None:
    """Wait for `work`, or end it when the client is gone."""
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            await work
    finally:
        for task in (work, gone):
            task.cancel()
        await asyncio.gather(work, gone, return_exceptions=True)


async def _refuse(send: Send, failure: RequestFailed) -> None:
    payload = json_bytes(failure.body)
    headers = [(b"content-type", b"application/json")]
    headers.append((b"content-length", str(len(payload)).encode()))
    if failure.retry_after_s:
        headers.append((b"retry-after", str(failure.retry_after_s).encode()))
    await send({"type": "http.response.start", "status": failure.status, "headers": headers})
    await send({"type": "http.response.body", "body": payload})
