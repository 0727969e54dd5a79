"""Keeps web pages of others from using a service through a browser that reaches it."""

from starlette.types import ASGIApp, Receive, Scope, Send

from services.http.error_answer import error_body
from services.http.json_body import AsciiJson


class CrossSiteGuard:
    """Refuses what a browser sends for a page of another site, but for a link that is followed.

    Without keys a service lets in whoever reaches it, and every page that is looked at on a
    machine reaches its loopback. Browsers say for whom they ask, and no page can change that:
    https://www.w3.org/TR/fetch-metadata/.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or refuse it."""
        if scope["type"] == "http" and _is_cross_site(scope):
            message = "this service takes no requests of other sites' pages; give it API keys"
            body = error_body(message, kind="cross_site", code=403)
            await AsciiJson(body, status_code=403)(scope, receive, send)
            return
        await self._app(scope, receive, send)


def _is_cross_site(scope: Scope) -> bool:
    site = mode = b""
    for name, value in scope["headers"]:
        if name == b"sec-fetch-site":
            site = value
        elif name == b"sec-fetch-mode":
            mode = value
    return site == b"cross-site" and not (mode == b"navigate" and scope["method"] == "GET")
