"""The page for the browsers of this machine."""

import socket

import uvicorn
from fastapi import FastAPI
from starlette.middleware.trustedhost import TrustedHostMiddleware

from services.access.access_control import CrossSiteGuard
from services.page.http_app import page_app
from services.page.run_store import RunStore

_NAMES = ["127.0.0.1", "localhost"]
_GRACE_S = 1


def local_app(store: RunStore) -> FastAPI:
    """The page, for requests under this machine's own names.

    Any other is refused: a web page elsewhere could have its own name lead here, and read what
    it is answered.
    """
    app = page_app(store)
    app.add_middleware(CrossSiteGuard)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=_NAMES)
    return app


def serve_locally(store: RunStore, listener: socket.socket) -> None:
    """Serve until interrupted."""
    config = uvicorn.Config(
        local_app(store), log_level="warning", lifespan="off", timeout_graceful_shutdown=_GRACE_S
    )
    uvicorn.Server(config).run(sockets=[listener])
