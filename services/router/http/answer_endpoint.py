"""The endpoints that generate, as plain ASGI applications.

FastAPI path operations cannot write their own stream and see the client disconnect: over plain
HTTP a disconnect arrives as a message, under Serve as a cancellation. Both end the work, and with
it the upstream request, at once.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Mapping
from contextlib import aclosing
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from services.access.access_control import KEY_NAME
from services.http.cut_off import STUCK, cut_off
from services.http.event_stream import StallTimer
from services.http.json_body import disconnected, read_body
from services.observability import tracing
from services.observability.log import Log
from services.protocol.router import CHOICE_HEADER, JOURNAL_HEADER, REPLICA_HEADER
from services.router.answering.journal import Piece
from services.router.answering.open_request import OpenRequest
from services.router.answering.pass_through import PassThrough
from services.router.doors.door import AnswerWriter
from services.router.doors.doors import door_of
from services.router.errors import RequestFailed, Unjournaled, unreadable_body
from services.router.http.access_log import LOGGED, AccessLog, RequestRecord
from services.router.http.answers import HttpAnswer
from services.router.http.background import BackgroundResponses, in_background
from services.router.http.progress_comments import commented
from services.router.request.client_request import ClientRequest, Endpoint
from services.router.request.trace_context import TRACE, trace_headers
from services.router.trajectories.session_call import SessionCall
from services.router.trajectories.shared_sessions import SessionRecords
from services.router.upstream.replicas import Replicas

_LOG = Log("router")
_STUCK = "client_stuck"
_NESTED = (dict, list)
_DEEPEST = 500
"""Deeper bodies can be parsed, but code that walks them later would exceed Python's limit."""


class Gate:
    """Bounds the requests that are open at once."""

    def __init__(self, bound: int) -> None:
        self._bound, self._open = bound, 0

    def __enter__(self) -> None:
        if self._open >= self._bound:
            message = f"{self._bound} requests are open already"
            raise RequestFailed(429, "too_many_requests", message, retry_after_s=1)
        self._open += 1

    def __exit__(self, *_: object) -> None:
        self._open -= 1


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


class AnswerEndpoint:
    """One of the endpoints that generate.

    Args:
        endpoint: which one.
        replicas: those of the cluster.
        external: those outside of it, for the models in the configuration's `backends`.
        gate: bounds the open requests.
        sessions: recorded sessions.
        background: answers requests with `background: true`; None: a replica refuses them.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        replicas: Replicas,
        external: Replicas,
        gate: Gate,
        sessions: SessionRecords,
        background: BackgroundResponses | None = None,
    ) -> None:
        self._endpoint, self._replicas, self._external = endpoint, replicas, external
        self._gate, self._sessions, self._background = gate, sessions, background
        self._external_models = {backend.model for backend in replicas.config.backends}
        self._log = AccessLog(replicas.config.access_log)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request until it is answered or the client is gone."""
        config = self._replicas.config
        record = RequestRecord(self._endpoint, self._log, scope.get(KEY_NAME))
        scope[LOGGED] = True
        door = door_of(self._endpoint, self._sessions)
        answer, status = HttpAnswer(send, config.client_write_s, door), "disconnected"
        came = trace_headers(Headers(scope=scope), begin=config.begin_traces)
        span = tracing.begin("request", came, endpoint=self._endpoint)
        TRACE.set(span.headers or came)
        try:
            raw = await read_body(
                receive,
                max_bytes=config.max_body_bytes,
                timeout_s=config.client_read_s,
                refused=RequestFailed,
            )
            status = await _until_gone(receive, self._serve(scope, raw, answer, record), answer)
            if status == _STUCK:
                cut_off(scope)
            elif status == "disconnected" and STUCK in scope:
                status = _STUCK
        except RequestFailed as refusal:
            status = refusal.kind
            await answer.fail(refusal)
        finally:
            record.close(status)
            if status != "ok":
                span.fail(status)
            span.end()

    async def _serve(
        self, scope: Scope, raw: bytes, answer: HttpAnswer, record: RequestRecord
    ) -> str:
        try:
            with self._gate:
                body = parsed(raw)
                if self._background is not None and in_background(body):
                    queued = await self._background.begin(self, scope, body)
                    await answer.whole(200, queued, {})
                    return "ok"
                ask = ClientRequest.parse(
                    self._endpoint,
                    await answer.door.opened(body),
                    dict(Headers(scope=scope)),
                    max_choices=self._replicas.config.max_choices,
                    caller=record.key or "",
                )
                record.ask = ask
                async with self._session_call(ask) as call:
                    record.ask = ask = ask.under(call.fixed)
                    if ask.model in self._external_models:
                        passing = PassThrough(ask, None, self._external)
                        await self._pass_on(passing, answer, record)
                        return "ok"
                    try:
                        await self._answer(ask, call, answer, record)
                    except Unjournaled as found:
                        recorded = call.recorded
                        passing = PassThrough(ask, found.name, self._replicas, recorded=recorded)
                        await self._pass_on(passing, answer, record)
            return "ok"
        except RequestFailed as failure:
            await answer.fail(failure)
            return failure.kind
        except Exception:  # noqa: BLE001  the request's outer edge; counted as internal_error
            _LOG.exception("request_crashed", endpoint=self._endpoint)
            await answer.fail(
                RequestFailed(500, "internal_error", "the router failed; see its log")
            )
            return "internal_error"

    def _session_call(self, ask: ClientRequest) -> SessionCall:
        goes_on = self._replicas.config.session_prompts == "recorded"
        return SessionCall(self._sessions, ask, goes_on=goes_on)

    async def _answer(
        self, ask: ClientRequest, call: SessionCall, answer: HttpAnswer, record: RequestRecord
    ) -> None:
        if ask.unjournaled is not None:
            raise Unjournaled(ask.unjournaled)
        request = OpenRequest(ask, self._replicas, recorded=call.recorded, start=call.start)
        record.served = request
        writer = answer.door.writer(request)
        async with aclosing(call.watched(request)) as pieces:
            try:
                write = self._stream if ask.stream else self._whole
                await write(request, writer, pieces, answer)
            except RequestFailed as failure:
                writer.tell_generated(failure)
                raise

    async def _pass_on(
        self, passing: PassThrough, answer: HttpAnswer, record: RequestRecord
    ) -> None:
        record.served = passing
        if not passing.ask.stream:
            whole = await passing.whole()
            await answer.whole(200, whole, _choice_headers(passing))
            return
        async with aclosing(passing.events()) as events:
            async for event in events:
                if not answer.begun:
                    await answer.begin_stream(_choice_headers(passing))
                await answer.events(answer.door.passed_on(event))
        await answer.end_stream(answer.door.end_of_passed_on())

    async def _whole(
        self,
        request: OpenRequest,
        writer: AnswerWriter,
        pieces: AsyncGenerator[Piece, None],
        answer: HttpAnswer,
    ) -> None:
        async for _ in pieces:
            pass
        whole = writer.whole()
        await writer.keep()
        await answer.whole(200, whole, _choice_headers(request))

    async def _stream(
        self,
        request: OpenRequest,
        writer: AnswerWriter,
        pieces: AsyncGenerator[Piece, None],
        answer: HttpAnswer,
    ) -> None:
        async with commented(request, answer):
            async for piece in pieces:
                if not answer.begun:
                    await answer.begin_stream(_choice_headers(request))
                await answer.events(writer.events(piece))
        ending = writer.ending()
        await writer.keep()
        await answer.end_stream(ending)


async def _until_gone(receive: Receive, work: Awaitable[str], answer: HttpAnswer) -> str:
    """Run `work` to its end, or cancel it when the client is gone or stuck.

    In the caller's own task: a task of its own for the work costs as much as choosing a replica.
    """
    loop, status, over = asyncio.get_running_loop(), "", False

    def give_up(why: str) -> None:
        nonlocal status
        if not over and not limit.expired():
            status = why
            limit.reschedule(loop.time())

    def watched(watcher: asyncio.Task[None]) -> None:
        # However it ended, a disconnect would not be noticed any more.
        if not watcher.cancelled() and (watcher.exception() or True):
            give_up("disconnected")

    try:
        async with asyncio.timeout(None) as limit:
            answer.stall_timer = StallTimer(lambda: give_up(_STUCK))
            watcher = asyncio.create_task(disconnected(receive))
            watcher.add_done_callback(watched)
            try:
                return await work
            finally:
                over = True
                watcher.cancel()
                answer.stall_timer.close()
    except TimeoutError:
        if not status:
            raise
    return status


def _choice_headers(request: OpenRequest | PassThrough) -> dict[str, str]:
    reservation = request.first_reservation
    if reservation is None:
        return {}
    headers = {REPLICA_HEADER: reservation.replica_id, CHOICE_HEADER: reservation.kind}
    return headers | ({JOURNAL_HEADER: "none"} if isinstance(request, PassThrough) else {})


def parsed(raw: bytes) -> Any:
    """What its JSON says.

    Raises:
        RequestFailed: 400, it is none.
    """
    try:
        value = json.loads(raw)
    except ValueError:
        raise unreadable_body("the body is not JSON") from None
    except RecursionError:
        raise _too_deep() from None
    # Only many brackets can be deep, and most bodies have few.
    if raw.count(b"[") + raw.count(b"{") > _DEEPEST and _is_deeper(value, _DEEPEST):
        raise _too_deep()
    return value


def _too_deep() -> RequestFailed:
    return unreadable_body(f"the body is nested more than {_DEEPEST} times")


def _is_deeper(value: Any, bound: int) -> bool:
    level = [value]
    while level and bound:
        parts = (part.values() if isinstance(part, dict) else part for part in level)
        level = [inner for part in parts for inner in part if type(inner) in _NESTED]
        bound -= 1
    return bool(level)
