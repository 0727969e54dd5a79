"""`/invocations`: the one path that Amazon SageMaker posts to, whatever the request is."""

from collections.abc import Mapping

from starlette.types import ASGIApp, Receive, Scope, Send

from services.http.json_body import read_body
from services.router.errors import RequestFailed, bad_request
from services.router.http.answer_endpoint import parsed
from services.router.http.inner_call import again

_PATHS = {"messages": "/v1/chat/completions", "prompt": "/v1/completions"}
"""Where a body goes that has such a field."""


class Invocations:
    """An ASGI application that leads each request to its endpoint.

    Args:
        endpoints: by path.
        read_s: how long a client may take to send a body.
        max_bytes: of a body.
    """

    def __init__(self, endpoints: Mapping[str, ASGIApp], *, read_s: float, max_bytes: int) -> None:
        self._endpoints, self._read_s, self._max_bytes = endpoints, read_s, max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        try:
            raw = await read_body(
                receive, max_bytes=self._max_bytes, timeout_s=self._read_s, refused=RequestFailed
            )
            body = parsed(raw)
            fields = body if isinstance(body, dict) else {}
            path = next((path for field, path in _PATHS.items() if field in fields), None)
            if path is None:
                raise bad_request("the body has neither messages nor prompt", "messages")
        except RequestFailed as failure:
            await failure.response()(scope, receive, send)
            return
        await self._endpoints[path](scope, again(raw, receive), send)
