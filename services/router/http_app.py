"""The router's FastAPI application."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from http import HTTPStatus

from fastapi import FastAPI, Request
from starlette.exceptions import HTTPException
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from services.access.access_control import protect
from services.http.error_answer import error_body
from services.http.json_body import AsciiJson
from services.observability.loop_lag import observe_loop_lag
from services.observability.metrics import RouterMetrics
from services.open_files import open_files
from services.router.config import RouterConfig
from services.router.errors import RequestFailed
from services.router.http.access_log import AccessLog, LoggedApp
from services.router.http.answer_endpoint import AnswerEndpoint, AnswerRoutes, Gate
from services.router.http.background import BackgroundResponses
from services.router.http.batches import BATCH_PATH, BatchEndpoint
from services.router.http.forwarded import forwarded_routes
from services.router.http.invocations import Invocations
from services.router.http.openapi import describe_answers
from services.router.http.proxy_forwarder import OPEN_PATHS, OWN_PORT, ProxyForwarder
from services.router.http.response_endpoints import response_routes
from services.router.http.session_endpoints import session_routes
from services.router.http.session_keys import SessionKeys
from services.router.http.status_endpoints import status_routes
from services.router.listener.connection_bound import bounded
from services.router.listener.listener import Listener
from services.router.listener.listening_socket import ListeningSocket, OwnListeningSocket
from services.router.placement.membership import TableSource
from services.router.placement.reservations import Reservations
from services.router.request.client_request import PATHS
from services.router.sharing.sharing import ExchangePoint
from services.router.trajectories.sessions import Sessions
from services.router.trajectories.shared_sessions import SessionRecords
from services.router.upstream.external_backends import external_replicas
from services.router.upstream.replicas import Replicas
from services.router.upstream.upstream import Upstream
from services.side_by_side import running

_LAG_PERIOD_S = 0.5


async def _always() -> bool:
    return True


@dataclass(frozen=True, kw_only=True)
class RouterNode:
    """What the router's own port needs of its node; the defaults are for a router without Ray.

    Attributes:
        port: where the listening socket comes from.
        proxy: URL of Serve's proxy of this node, for requests to other applications; None: there
            are none.
        ending: whether a router that stops is the end of the application, with all its clients.
        runs: waits until Serve counts on this router, so that it ends it gently; False if that was
            not known in time.
    """

    port: ListeningSocket = field(default_factory=OwnListeningSocket)
    proxy: str | None = None
    ending: Callable[[], Awaitable[bool]] = _always
    runs: Callable[[], Awaitable[bool]] | None = None


def build_http(
    config: RouterConfig,
    bus: TableSource,
    point: ExchangePoint | None = None,
    sessions: SessionRecords | None = None,
    node: RouterNode | None = None,
) -> FastAPI:
    """The application; its lifespan opens the connections and watches the bus.

    Args:
        config: the router's settings.
        bus: where the member table comes from.
        point: where this router and others tell each other what they do; None: it is alone.
        sessions: recorded sessions, if they are in a process of their own.
        node: what the router's own port needs.
    """
    node = node or RouterNode()
    config = bounded(config, open_files())
    replicas = Replicas(
        config=config,
        reservations=Reservations(config, bus),
        upstream=Upstream(config),
        point=point,
    )
    external = external_replicas(config)
    sessions = sessions or Sessions(config)
    background = BackgroundResponses(sessions, config.max_open_requests)
    draining = asyncio.Event()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as ends:
            await ends.enter_async_context(replicas.running())
            if config.backends:
                await ends.enter_async_context(external.running())
            await ends.enter_async_context(background.running())
            lag = observe_loop_lag(RouterMetrics.loop_lag, period_s=_LAG_PERIOD_S)
            await ends.enter_async_context(running(lag, name="loop_lag"))
            if config.listen is not None:
                listener = Listener(config.listen, node.port, write_s=config.client_write_s)
                await listener.start(_marked(app), node.runs)
                ends.push_async_callback(_stop, listener, node, draining)
            yield

    app = FastAPI(title="Millrace router", lifespan=lifespan)
    app.state.replicas = replicas
    app.add_exception_handler(RequestFailed, _refused)
    app.add_exception_handler(HTTPException, _unserved)
    _add_routes(app, replicas, external, sessions, background)
    # What is added last is first to see a request.
    open_paths: tuple[str, ...] = ("/", "/health")
    if node.proxy is not None and _may_forward(config):
        app.add_middleware(ProxyForwarder, config=config, proxy=node.proxy, draining=draining)
        open_paths += OPEN_PATHS
    guests = SessionKeys(sessions)
    protect(app, config.access, service="router", open_paths=open_paths, guests=guests)
    if config.access_log:
        log = AccessLog(config.access_log)
        app.add_middleware(LoggedApp, log=log, quiet_paths=("/health",))
    return app


async def _stop(listener: Listener, node: RouterNode, draining: asyncio.Event) -> None:
    ending = await node.ending()
    draining.set()
    await listener.stop(ending=ending)


def _may_forward(config: RouterConfig) -> bool:
    """Whether other applications are as safe behind this router's port as behind Serve's.

    They look at where Serve listens. Where others reach the router, its keys stand before them;
    without keys they stay behind Serve's own address.
    """
    return config.listen is not None and (config.access.has_keys or config.listen.is_loopback)


def _marked(app: ASGIApp) -> ASGIApp:
    async def marked(scope: Scope, receive: Receive, send: Send) -> None:
        scope[OWN_PORT] = True
        await app(scope, receive, send)

    return marked


def _add_routes(
    app: FastAPI,
    replicas: Replicas,
    external: Replicas,
    sessions: SessionRecords,
    background: BackgroundResponses,
) -> None:
    def forget_home(session: str) -> None:
        for known in (replicas, external):
            known.reservations.chooser.homes.forget(session)

    read_s = replicas.config.client_read_s
    interruptions = replicas.reservations.interruptions
    app.include_router(session_routes(sessions, interruptions, forget_home, read_s=read_s))
    app.include_router(status_routes(replicas, external))
    app.include_router(response_routes(sessions, background))
    app.include_router(forwarded_routes(replicas, sessions))
    config = replicas.config
    gate = Gate(config.max_open_requests)
    endpoints: dict[str, ASGIApp] = {
        path: AnswerEndpoint(
            endpoint,
            replicas,
            external,
            gate,
            sessions,
            background if endpoint == "responses" else None,
        )
        for endpoint, path in PATHS.items()
    }
    endpoints[BATCH_PATH] = BatchEndpoint(endpoints[PATHS["chat"]], config)
    endpoints["/invocations"] = Invocations(
        endpoints, read_s=read_s, max_bytes=config.max_body_bytes
    )
    app.router.routes += [Route(path, end, methods=["POST"]) for path, end in endpoints.items()]
    app.add_middleware(AnswerRoutes, endpoints=endpoints)
    describe_answers(app)


async def _refused(_: Request, failure: Exception) -> AsciiJson:
    assert isinstance(failure, RequestFailed)
    return failure.response()


async def _unserved(request: Request, failure: Exception) -> AsciiJson:
    """Clients of OpenAI's read a message from errors of its shape alone."""
    assert isinstance(failure, HTTPException)
    message = f"There is no {request.method} {request.url.path:.200} here. GET /openapi.json "
    message += "lists what is served: chat completions and completions among them."
    kind = HTTPStatus(failure.status_code).phrase
    body = error_body(message, kind=kind, code=failure.status_code)
    return AsciiJson(body, status_code=failure.status_code, headers=failure.headers)
