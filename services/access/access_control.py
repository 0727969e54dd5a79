"""The middleware that asks for an API key; without keys, the guard against other sites' pages."""

import math
import time
from collections.abc import Awaitable, Callable, Collection

from starlette.applications import Starlette
from starlette.types import ASGIApp, Receive, Scope, Send

from services.access.api_keys import ApiKey, Excess, KeyLimits, KeyRing, KeySource
from services.access.config import AccessConfig
from services.http.error_answer import error_body
from services.http.json_body import AsciiJson
from services.observability.metrics import AccessMetrics
from services.side_by_side import running

KEY_NAME = "millrace.key"
"""Where the scope of an admitted request holds the name of its key; absent without keys."""

GUEST = "session"
"""The name of every key that is not one of the ring."""

Guests = Callable[[str, Scope], Awaitable[bool]]
"""Raises `GuestsUnknown`."""

_REFUSED = 1008  # RFC 6455, 7.4.1: against the policy


class GuestsUnknown(Exception):
    """Who is a guest cannot be found out now.

    Attributes:
        answer: what the client gets.
    """

    def __init__(self, answer: ASGIApp) -> None:
        self.answer = answer
        super().__init__("who is a guest cannot be found out now")


class AccessControl:
    """Lets requests pass that show a key and are within its limits.

    Args:
        app: what is protected.
        source: where the keys come from.
        ring: the keys as they were read at the start.
        service: what logs and metrics call it.
        open_paths: paths that may be read without a key, such as a load balancer's probe; one
            that ends with `/*` stands for all below it.
        guests: whether a request may pass by what it shows in place of a key of the ring.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        source: KeySource,
        ring: KeyRing,
        service: str,
        open_paths: Collection[str] = (),
        guests: Guests | None = None,
    ) -> None:
        self._app, self._source, self._service = app, source, service
        self._guests = guests
        self._open_paths = frozenset(open_paths)
        self._open_below = tuple(path[:-1] for path in open_paths if path.endswith("/*"))
        self._ring = ring
        self._limits: dict[str, KeyLimits] = {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or the application's life, during which the keys are followed."""
        if scope["type"] == "lifespan":
            async with running(self._source.follow(self._replace), name="api_keys"):
                await self._app(scope, receive, send)
            return
        if scope["type"] != "http":  # a websocket: no service has one, and none shows a key
            await send({"type": "websocket.close", "code": _REFUSED})
        elif scope["method"] in ("GET", "HEAD") and self._is_open(scope["path"]):
            await self._app(scope, receive, send)
        else:
            await self._checked(scope, receive, send)

    def _is_open(self, path: str) -> bool:
        return path in self._open_paths or path.startswith(self._open_below)

    async def _checked(self, scope: Scope, receive: Receive, send: Send) -> None:
        shown = _shown(scope)
        key = self._ring.find(shown)
        if key is None and self._guests is not None:
            try:
                guest = await self._guests(shown.decode("latin-1"), scope)
            except GuestsUnknown as problem:
                self._count("", "unknown")
                await problem.answer(scope, receive, send)
                return
            if guest:
                self._count(GUEST, "admitted")
                scope[KEY_NAME] = GUEST
                await self._app(scope, receive, send)
                return
        if key is None:
            self._count("", "unauthorized")
            message = "no such API key; send one as `Authorization: Bearer KEY` or `x-api-key: KEY`"
            shown_as = {"www-authenticate": "Bearer"}
            await _refusal(401, "invalid_api_key", message, shown_as)(scope, receive, send)
            return
        limits = self._limits_of(key)
        excess = limits.admit(time.monotonic())
        if excess is not None:
            self._count(key.name, excess[0])
            await _beyond_limits(key, *excess)(scope, receive, send)
            return
        self._count(key.name, "admitted")
        scope[KEY_NAME] = key.name
        try:
            await self._app(scope, receive, send)
        finally:
            limits.release()

    def _limits_of(self, key: ApiKey) -> KeyLimits:
        limits = self._limits.get(key.name)
        if limits is None:
            limits = self._limits[key.name] = KeyLimits(key, now=time.monotonic())
        return limits

    def _replace(self, ring: KeyRing) -> None:
        """Other keys from now on; what a name has used up stays used up."""
        self._ring = ring
        for name in [name for name in self._limits if name not in ring.keys]:
            del self._limits[name]
        for name, limits in self._limits.items():
            limits.key = ring.keys[name]

    def _count(self, key: str, outcome: str) -> None:
        AccessMetrics.requests.inc(tags={"service": self._service, "key": key, "outcome": outcome})


class CrossSiteGuard:
    """Refuses what a browser sends for a page of another site, but for a link that is followed.

    Without keys a service lets in every client that reaches it, and every page that is opened on a
    machine reaches its loopback. Browsers say for whom they ask, and no page can change that:
    https://www.w3.org/TR/fetch-metadata/.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or refuse it."""
        headers = dict(scope["headers"]) if scope["type"] == "http" else {}
        link_followed = headers.get(b"sec-fetch-mode") == b"navigate" and scope["method"] == "GET"
        if headers.get(b"sec-fetch-site") == b"cross-site" and not link_followed:
            message = "this service takes no requests of other sites' pages; give it API keys"
            await _refusal(403, "cross_site", message, {})(scope, receive, send)
            return
        await self._app(scope, receive, send)


def protect(
    app: Starlette,
    config: AccessConfig,
    *,
    service: str,
    open_paths: Collection[str] = (),
    guests: Guests | None = None,
) -> None:
    """Have an application ask for keys; where none are configured, refuse other sites' pages.

    See `AccessControl` for the last two.

    Raises:
        InvalidInput: the keys cannot be read, which is found out here and not at a request.
    """
    source = KeySource(config, service=service)
    ring = source.read()
    if ring is None:
        app.add_middleware(CrossSiteGuard)
        return
    app.add_middleware(
        AccessControl,
        source=source,
        ring=ring,
        service=service,
        open_paths=open_paths,
        guests=guests,
    )


def _shown(scope: Scope) -> bytes:
    """The bearer token or, as Anthropic's clients send it, the API key; empty for none."""
    headers = dict(scope["headers"])
    scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
    if scheme:
        return bytes(token.strip()) if scheme.lower() == b"bearer" else b""
    return bytes(headers.get(b"x-api-key", b"").strip())


def _beyond_limits(key: ApiKey, excess: Excess, wait_s: float) -> AsciiJson:
    limit = (
        f"{key.requests_per_s:g} requests a second"
        if excess == "rate_limited"
        else f"{key.max_open_requests} open requests"
    )
    message = f"the API key {key.name!r} is limited to {limit}; try again later"
    return _refusal(429, excess, message, {"retry-after": str(math.ceil(wait_s))})


def _refusal(status: int, kind: str, message: str, headers: dict[str, str]) -> AsciiJson:
    return AsciiJson(error_body(message, kind=kind, code=status), status, headers)
