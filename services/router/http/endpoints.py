"""The HTTP side: OpenAI's endpoints as plain ASGI applications.

The answering endpoints are not FastAPI path operations, because they must write their own
stream and see the client go: over plain HTTP a disconnect arrives as a message, under Serve
as a cancellation. Both end the work, and with it the upstream request, at once.
"""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Mapping
from contextlib import aclosing
from typing import Any

from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from services.access.access_control import KEY_NAME
from services.observability import tracing
from services.observability.log import Log
from services.protocol.router import CHOICE_HEADER, JOURNAL_HEADER, REPLICA_HEADER
from services.router.answering.journal import Piece
from services.router.answering.open_request import OpenRequest
from services.router.answering.pass_through import PassThrough
from services.router.errors import RequestFailed, Unjournaled
from services.router.http.access_log import LOGGED, AccessLog
from services.router.http.answers import AnswerWriter
from services.router.http.request_body import disconnected, parsed, read_body
from services.router.http.request_record import RequestRecord
from services.router.request.client_request import ClientRequest, Endpoint
from services.router.request.json_bytes import json_bytes
from services.router.request.trace_context import TRACE, trace_headers
from services.router.trajectories.session_call import SessionCall
from services.router.trajectories.sessions import SessionRecords
from services.router.upstream.external_backends import check_needs_no_journal
from services.router.upstream.replicas import Replicas
from services.router.upstream.stall_timer import StallTimer

_LOG = Log("router")


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


class AnswerEndpoint:
    """One of the two generating endpoints.

    Args:
        endpoint: which one.
        replicas: those of the cluster.
        external: those outside of it, for the models in the configuration's `backends`.
        gate: bounds the open requests.
        sessions: recorded sessions.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        replicas: Replicas,
        external: Replicas,
        gate: Gate,
        sessions: SessionRecords,
    ) -> None:
        self._endpoint, self._replicas, self._external = endpoint, replicas, external
        self._gate, self._sessions = gate, sessions
        self._external_models = {backend.model for backend in replicas.config.backends}
        self._log = AccessLog(replicas.config.access_log)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request until it is answered or the client is gone."""
        config = self._replicas.config
        record = RequestRecord(self._endpoint, self._log, scope.get(KEY_NAME))
        scope[LOGGED] = True
        answer, status = _Answer(send, config.client_write_s), "disconnected"
        headers = dict(Headers(scope=scope))
        came = trace_headers(headers, begin=config.begin_traces)
        span = tracing.begin("request", came, endpoint=self._endpoint)
        TRACE.set(span.headers or came)
        try:
            raw = await read_body(
                receive, max_bytes=config.max_body_bytes, timeout_s=config.client_read_s
            )
            status = await _until_gone(receive, self._serve(headers, raw, answer, record), answer)
        except RequestFailed as refusal:
            status = refusal.kind
            await answer.fail(refusal)
        finally:
            record.close(status)
            if status != "ok":
                span.fail(status)
            span.end()

    async def _serve(
        self, headers: Mapping[str, str], raw: bytes, answer: "_Answer", record: RequestRecord
    ) -> str:
        try:
            with self._gate:
                ask = ClientRequest.parse(
                    self._endpoint,
                    parsed(raw),
                    headers,
                    max_choices=self._replicas.config.max_choices,
                    caller=record.key or "",
                )
                record.asks(ask)
                async with SessionCall(self._sessions, ask.session) as call:
                    if ask.model in self._external_models:
                        check_needs_no_journal(ask)
                        passing = PassThrough(ask, "this model", self._external)
                        record.served_by(passing)
                        await self._pass_on(passing, ask, answer)
                        return "ok"
                    try:
                        await self._answer(ask, call, answer, record)
                    except Unjournaled as found:
                        ask.check_needs_no_journal(found.name, recorded=call.recorded)
                        passing = PassThrough(ask, found.name, self._replicas)
                        record.served_by(passing)
                        await self._pass_on(passing, ask, answer)
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

    async def _answer(
        self, ask: ClientRequest, call: SessionCall, answer: "_Answer", record: RequestRecord
    ) -> None:
        if ask.unjournaled is not None:
            raise Unjournaled(ask.unjournaled)
        request = OpenRequest(ask, self._replicas, recorded=call.recorded)
        record.served_by(request)
        async with aclosing(call.watched(request)) as pieces:
            try:
                await (self._stream if ask.stream else self._whole)(request, pieces, answer)
            except RequestFailed as failure:
                AnswerWriter(request).tell_generated(failure)
                raise

    async def _pass_on(self, passing: PassThrough, ask: ClientRequest, answer: "_Answer") -> None:
        if not ask.stream:
            whole = await passing.whole()
            await answer.whole(200, whole, _choice_headers(passing))
            return
        async with aclosing(passing.events()) as events:
            async for event in events:
                if not answer.begun:
                    await answer.begin_stream(_choice_headers(passing))
                await answer.event(event.encode())
        await answer.end_stream()

    async def _whole(
        self, request: OpenRequest, pieces: AsyncGenerator[Piece, None], answer: "_Answer"
    ) -> None:
        async for _ in pieces:
            pass
        await answer.whole(200, AnswerWriter(request).whole(), _choice_headers(request))

    async def _stream(
        self, request: OpenRequest, pieces: AsyncGenerator[Piece, None], answer: "_Answer"
    ) -> None:
        writer = AnswerWriter(request)
        async for piece in pieces:
            if not answer.begun:
                await answer.begin_stream(_choice_headers(request))
            event = writer.event(piece)
            if event is not None:
                await answer.event(json_bytes(event))
        if request.ask.include_usage:
            await answer.event(json_bytes(writer.usage_event()))
        await answer.end_stream()


class _Answer:
    """Writes an HTTP response; each write must be taken within `write_s` seconds.

    Attributes:
        stall_timer: ends a write that is not; None while nothing watches.
    """

    def __init__(self, send: Send, write_s: float) -> None:
        self._send, self._write_s = send, write_s
        self.stall_timer: StallTimer | None = None
        self.begun = False

    async def whole(self, status: int, body: dict[str, Any], headers: dict[str, str]) -> None:
        """A complete JSON response."""
        payload = json_bytes(body)
        fixed = {"content-type": "application/json", "content-length": str(len(payload))}
        await self._begin(status, fixed | headers)
        await self._write(payload, more=False)

    async def begin_stream(self, headers: dict[str, str]) -> None:
        """Start of a stream of server-sent events."""
        fixed = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
        await self._begin(200, fixed | headers)

    async def event(self, data: bytes) -> None:
        """One server-sent event."""
        await self._write(b"data: %b\n\n" % data, more=True)

    async def end_stream(self) -> None:
        """The end marker."""
        await self._write(b"data: [DONE]\n\n", more=False)

    async def fail(self, failure: RequestFailed) -> None:
        """An error, as a response or, inside a stream, as an event."""
        if self.begun:
            await self.event(json_bytes(failure.body))
            await self.end_stream()
            return
        await self.whole(failure.status, failure.body, failure.headers)

    async def _begin(self, status: int, headers: dict[str, str]) -> None:
        raw = [(name.encode(), value.encode("latin-1")) for name, value in headers.items()]
        self.begun = True
        await self._send({"type": "http.response.start", "status": status, "headers": raw})

    async def _write(self, data: bytes, *, more: bool) -> None:
        if self.stall_timer is not None:
            self.stall_timer.begin(self._write_s)
        await self._send({"type": "http.response.body", "body": data, "more_body": more})
        if self.stall_timer is not None:
            self.stall_timer.end()


async def _until_gone(receive: Receive, work: Awaitable[str], answer: _Answer) -> str:
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
        # Whatever else ends it means as well that nobody can be heard any more.
        if not watcher.cancelled() and (watcher.exception() or True):
            give_up("disconnected")

    try:
        async with asyncio.timeout(None) as limit:
            answer.stall_timer = StallTimer(lambda: give_up("client_stuck"))
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
