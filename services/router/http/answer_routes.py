"""The short way to the answering endpoints."""

from collections.abc import Mapping

from starlette.types import ASGIApp, Receive, Scope, Send


class AnswerRoutes:
    """Middleware that leads requests for answers past FastAPI's own layers.

    The endpoints are plain ASGI applications, which need none of them, and every event of a
    stream would pass through each.

    Args:
        app: serves everything else, other methods on these paths included.
        endpoints: by path, for POST.
    """

    def __init__(self, app: ASGIApp, endpoints: Mapping[str, ASGIApp]) -> None:
        self._app, self._endpoints = app, endpoints

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or the application's life."""
        app = self._app
        if scope["type"] == "http" and scope["method"] == "POST":
            app = self._endpoints.get(scope["path"], app)
        await app(scope, receive, send)
