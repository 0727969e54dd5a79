"""Requests for other applications of Serve that come to the router's own port."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import aiohttp
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.http.cut_off import cut_off
from services.http.json_body import disconnected, read_body
from services.http.relay import end_to_end, relay, relaying_client
from services.observability.log import Log
from services.router.config import RouterConfig
from services.router.errors import RequestFailed
from services.router.http.answer_endpoint import Gate
from services.side_by_side import race, running

OWN_PORT = "millrace.own_port"
"""In the scope of a request that came to the router's own port."""

OPEN_PATHS = ("/page", "/page/", "/page/static/*", "/-/healthz", "/-/routes")
"""Paths that need no key of the router's: files of the page itself, and probes."""

_LOG = Log("router")
_LOOK_S = 2.0
_LOOK_TIMEOUT_S = 5.0
_KNOWN = ("/-/", "/v1/runs/", "/v1/sandboxes/", "/page/")
"""Paths that our own applications have; Serve's list may have more."""

_BODILESS = ("GET", "HEAD")


class ProxyForwarder:
    """Middleware that passes requests on to Serve's proxy where another application has the path.

    It does so only for requests from the router's own port: those from the proxy would come back.

    Args:
        app: serves everything else.
        config: the router's settings.
        proxy: URL of Serve's proxy of this node.
        draining: is set when the router is to be replaced; streams of others end then, which
            might go on for ever, and their clients connect again.
    """

    def __init__(
        self, app: ASGIApp, config: RouterConfig, proxy: str, draining: asyncio.Event
    ) -> None:
        self._app, self._config, self._proxy, self._draining = app, config, proxy, draining
        self._prefixes: tuple[str, ...] = _KNOWN
        self._gate = Gate(config.max_open_requests)
        self._client: aiohttp.ClientSession | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or the application's life, during which routes are followed."""
        if scope["type"] == "lifespan":
            await self._lifespan(scope, receive, send)
        elif OWN_PORT in scope and f"{scope['path']}/".startswith(self._prefixes):
            await self._forward(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        # The gate bounds its calls.
        async with relaying_client(connect_s=self._config.connect_s) as self._client:
            async with running(self._follow_routes(), name="serve_routes"):
                await self._app(scope, receive, send)

    async def _follow_routes(self) -> None:
        """Learn which paths other applications have, from Serve's own list."""
        assert self._client is not None
        limit, problem = aiohttp.ClientTimeout(total=_LOOK_TIMEOUT_S), ""
        while True:
            try:
                async with self._client.get(f"{self._proxy}/-/routes", timeout=limit) as answer:
                    routes: dict[str, str] = await answer.json(content_type=None)
                found = tuple(f"{prefix.rstrip('/')}/" for prefix in routes if prefix != "/")
                self._prefixes, problem = (*_KNOWN, *found), ""
            except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                if repr(error) != problem:  # once, not every two seconds
                    problem = repr(error)
                    _LOG.warning("serve_routes_unknown", problem=problem)
            await asyncio.sleep(_LOOK_S)

    async def _forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        config, began = self._config, False
        headers = end_to_end(scope["headers"])  # before the body, whose trailers become headers

        async def noting(message: Message) -> None:
            nonlocal began
            began = True
            try:
                async with asyncio.timeout(config.client_write_s):
                    await send(message)
            except TimeoutError:
                cut_off(scope)
                raise

        try:
            with self._gate:
                body = b""
                if scope["method"] in _BODILESS:
                    headers = [one for one in headers if one[0] != b"content-length"]
                else:
                    body = await read_body(
                        receive,
                        max_bytes=config.max_body_bytes,
                        timeout_s=config.client_read_s,
                        refused=RequestFailed,
                    )
                assert self._client is not None
                answer = relay(self._client, self._proxy, scope, body, noting, headers=headers)
                calls: dict[str, Coroutine[Any, Any, object]] = {
                    "answer": answer,
                    "disconnected": disconnected(receive),
                    "draining": self._draining.wait(),
                }
                await race(calls)
        except RequestFailed as failure:
            await failure.response()(scope, receive, send)
        except (aiohttp.ClientError, TimeoutError) as problem:
            _LOG.warning("forwarding_failed", path=scope["path"][:200], problem=repr(problem))
            if began:
                return  # uvicorn closes the connection, so the client sees that a piece is missing
            message = f"{scope['path']:.200} cannot be reached now; try again"
            unreachable = RequestFailed(502, "unreachable", message, retry_after_s=1)
            await unreachable.response()(scope, receive, send)
