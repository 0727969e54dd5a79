"""Responses with `background: true`: made while no client waits for them."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Scope

from services.observability.log import Log
from services.router.doors.responses import EARLIER, new_items, unanswered
from services.router.errors import RequestFailed, bad_request
from services.router.http.inner_call import inner_call
from services.router.request.client_request import answer_id, request_name
from services.router.trajectories.shared_sessions import SessionRecords
from services.router.trajectories.stored_responses import failed
from services.side_by_side import cancel

_Json = dict[str, Any]

_LOG = Log("router")
_SAME = "id", "created_at", "background", "store"
"""What a response says from its beginning to its end."""
_STOPPED = "the router that made the response was stopped"


class BackgroundResponses:
    """The responses that this router makes in the background; they end with it.

    Args:
        sessions: keep the responses.
        bound: how many at a time.
    """

    def __init__(self, sessions: SessionRecords, bound: int) -> None:
        self._sessions, self._bound = sessions, bound
        self._tasks: dict[str, asyncio.Task[None]] = {}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """At the end, what is not finished has failed."""
        try:
            yield
        finally:
            tasks, stopped = dict(self._tasks), RequestFailed(503, "router_stopped", _STOPPED)
            await cancel(*tasks.values())
            for name in tasks:
                with suppress(RequestFailed):
                    queued = await self._sessions.response(name)
                    await self._sessions.keep_response(failed(queued, stopped), [], None)

    async def begin(self, endpoint: ASGIApp, scope: Scope, body: _Json) -> _Json:
        """Begin to answer a request, and return the response as it is now: queued.

        Args:
            endpoint: of responses; answers this one as if a client had sent it.
            scope: of the client's request.
            body: of the client's request.

        Raises:
            RequestFailed: 400, 404 or 429; all else that is wrong is told by the response.
        """
        if body.get("store", True) is not True:
            message = "background can only be used when `store` is true"
            raise bad_request(message, "background")
        if body.get("stream"):
            message = "a response in the background is not streamed: read /v1/responses/{id}"
            raise bad_request(message, "stream")
        given, earlier = body.get("request_id"), body.get(EARLIER)
        request_id = given if isinstance(given, str) else None
        name = answer_id("responses", request_name(Headers(scope=scope), request_id))
        if name in self._tasks:
            raise bad_request(f"{name!r:.200} is being made already", "request_id")
        if len(self._tasks) >= self._bound:
            message = f"{self._bound} responses are made in the background already"
            raise RequestFailed(429, "too_many_requests", message, retry_after_s=1)
        if isinstance(earlier, str):
            await self._sessions.response(earlier)
        queued = {**unanswered(body, name=name, status="queued"), "background": True}
        await self._sessions.keep_response(queued, [], None)
        asked = {**body, "background": False, "store": False, "request_id": name}
        made = self._make(inner_call(endpoint, scope, asked), queued, body)
        task = self._tasks[name] = asyncio.create_task(made, name="background_response")
        task.add_done_callback(lambda _: self._tasks.pop(name, None))
        return queued

    async def cancel(self, name: str) -> None:
        """Stop making a response, if this router does; what is kept of it stays as it is."""
        await cancel(self._tasks.get(name))

    async def _make(
        self,
        call: Coroutine[Any, Any, dict[str, Any]],
        queued: dict[str, Any],
        body: dict[str, Any],
    ) -> None:
        try:
            ended = {**await call, **{name: queued[name] for name in _SAME}}
        except RequestFailed as failure:
            ended = failed(queued, failure)
        try:
            await self._sessions.keep_response(ended, new_items(body), body.get(EARLIER))
        except RequestFailed as failure:
            _LOG.warning("background_response_lost", answer=queued["id"], reason=str(failure))


def in_background(body: Any) -> bool:
    """Whether a request for a response asks for this."""
    return isinstance(body, dict) and body.get("background") is True
