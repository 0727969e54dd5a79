"""The page for the browsers of this machine."""

import socket

import uvicorn
from starlette.middleware.trustedhost import TrustedHostMiddleware

from services.page.http_app import page_app
from services.page.run_shelf import RunShelf

_NAMES = ["127.0.0.1", "localhost"]
_GRACE_S = 1


def serve_locally(shelf: RunShelf, listener: socket.socket) -> None:
    """Serve until interrupted.

    Requests under any other name than this machine's are refused: a web page elsewhere could
    have its own name lead here, and read what it is answered.
    """
    app = page_app(shelf)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=_NAMES)
    config = uvicorn.Config(
        app, log_level="warning", lifespan="off", timeout_graceful_shutdown=_GRACE_S
    )
    uvicorn.Server(config).run(sockets=[listener])
