"""The router's FastAPI application."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.routing import Route

from services.access.access_control import protect
from services.router.config import RouterConfig
from services.router.endpoints import AnswerEndpoint, Gate
from services.router.errors import RequestFailed
from services.router.listener import Listener
from services.router.loop_lag import LoopLag
from services.router.membership import TableSource
from services.router.replicas import Replicas
from services.router.seats import Seats
from services.router.session_endpoints import session_routes
from services.router.sessions import Sessions
from services.router.upstream import Upstream


def build_http(config: RouterConfig, bus: TableSource) -> FastAPI:
    """The application; its lifespan opens the connections and watches the bus."""
    replicas = Replicas(config=config, seats=Seats(config, bus), upstream=Upstream(config))
    membership, loop_lag = replicas.seats.membership, LoopLag()
    listener = None if config.listen is None else Listener(config.listen)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await replicas.upstream.start()
        membership.start()
        loop_lag.start()
        try:
            if listener is not None:
                await listener.start(app)
            yield
        finally:
            if listener is not None:
                await listener.stop()
            await loop_lag.stop()
            await membership.stop()
            await replicas.upstream.stop()

    app = FastAPI(title="Millrace router", lifespan=lifespan)
    protect(app, config.access, service="router", open_paths=("/health",))
    app.state.replicas = replicas
    app.add_exception_handler(RequestFailed, _refused)
    gate, sessions = Gate(config.max_open_requests), Sessions(config)
    chat = AnswerEndpoint("chat", replicas, gate, sessions)
    completions = AnswerEndpoint("completions", replicas, gate, sessions)
    app.include_router(session_routes(sessions, replicas.seats.chooser.homes.forget))
    app.router.routes += [
        Route("/v1/chat/completions", chat, methods=["POST"]),
        Route("/v1/completions", completions, methods=["POST"]),
    ]

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        """Models that a leased replica serves now, in OpenAI's shape."""
        leased = membership.leased(None).values()
        lengths = {member.model: member.max_model_len for member in leased}
        return {"object": "list", "data": [_model(*item) for item in sorted(lengths.items())]}

    @app.get("/health")
    async def health() -> JSONResponse:
        """200 while at least one replica holds a lease, else 503."""
        leased = len(membership.leased(None))
        content = {"leased_replicas": leased, "members": len(membership.members)}
        return JSONResponse(content, status_code=200 if leased else 503)

    return app


async def _refused(_: Request, failure: Exception) -> JSONResponse:
    assert isinstance(failure, RequestFailed)
    after = failure.retry_after_s
    headers = {"retry-after": str(after)} if after else None
    return JSONResponse(failure.body, status_code=failure.status, headers=headers)


def _model(name: str, max_model_len: int) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": "millrace",
        "max_model_len": max_model_len,
    }
