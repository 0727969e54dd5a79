"""The client towards one replica's own HTTP address: generate, derender, or the whole answer.

Bodies are plain dictionaries on purpose: one chunk comes per decode step, and validating
it again would cost more than everything else the router does.
"""

import math
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

import aiohttp
import msgspec

from services.http.event_stream import END, EventStream, EventTooLong, StallTimer
from services.http.json_body import json_bytes
from services.protocol.rollout_server import RENDER_AND_GENERATE, GenerationOrder
from services.router.config import RouterConfig
from services.router.errors import ENGINE_ERROR, RequestFailed, UpstreamBroken
from services.router.placement.reservation import Reservation
from services.router.request.trace_context import TRACE

_END_OF_EVENT = b"\n\n"
_EVENTS = "text/event-stream"
_GENERATE = "/inference/v1/generate"
_JSON = {"content-type": "application/json"}
_RETRIED_CLIENT_ERRORS = (408, 429)
_ENGINE_ERROR = "Internal server error"
"""vLLM's message where an engine ended a request with finish reason `error`, as for a grammar that
it cannot compile. Of an engine that died it says something else."""
# uvicorn closes idle connections after 5 s; reusing one at that moment looks like a death.
_KEEPALIVE_S = 3.0
_UNANSWERED = 3
"""TCP keepalive probes in a row that may get no acknowledgement."""


class Upstream:
    """One bounded pool of connections to all replicas."""

    def __init__(self, config: RouterConfig) -> None:
        self._config = config
        self._session: aiohttp.ClientSession | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Open the pool, and close all connections at the end."""
        async with aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=self._config.max_connections,
                keepalive_timeout=_KEEPALIVE_S,
                socket_factory=socket_factory(self._config.silence_s),
            ),
            timeout=aiohttp.ClientTimeout(total=None, connect=self._config.connect_s),
            read_bufsize=2**18,
            # One client's cookies are not for the next one.
            cookie_jar=aiohttp.DummyCookieJar(),
        ) as self._session:
            yield

    async def call(
        self,
        reservation: Reservation,
        path: str,
        body: dict[str, Any] | bytes | None,
        *,
        timeout_s: float | None = None,
    ) -> Any:
        """POST one body, JSON already if bytes, and return the parsed answer.

        Args:
            reservation: where.
            path: of the replica's.
            body: what is sent; None: it is a GET.
            timeout_s: `derender_s` unless given.

        Raises:
            UpstreamBroken: the replica failed.
            RequestFailed: the replica refused the body.
        """
        async with reservation.limit(timeout_s or self._config.derender_s):
            return await _decoded(await self._send(reservation, path, body), path)

    async def answer(
        self, reservation: Reservation, path: str, body: dict[str, Any]
    ) -> dict[str, Any]:
        """The replica's own answer to a client's request that does not stream.

        Raises:
            UpstreamBroken: the replica failed, or needed more than `whole_answer_s`.
            RequestFailed: the replica refused the body.
        """
        reservation.check_lease()
        limit_s = self._config.whole_answer_s
        return checked_answer(await self.call(reservation, path, body, timeout_s=limit_s))

    def generate(
        self, reservation: Reservation, body: dict[str, Any]
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Have tokens made: the chunks, as they come; a single one if the answer is whole.

        Ends at the replica's end of stream, finished or not. Closing the generator closes
        the connection, which aborts the request in the engine at once.

        Raises:
            UpstreamBroken: connection lost, deadline missed, replica gone, error event.
            RequestFailed: the replica refused the body.
        """
        return self._chunks(reservation, _GENERATE, body, leading=0)

    def render_and_generate(
        self, reservation: Reservation, order: GenerationOrder
    ) -> AsyncGenerator[dict[str, Any], None]:
        """As `generate`; the first chunk has what was rendered under `request`."""
        return self._chunks(reservation, RENDER_AND_GENERATE, vars(order), leading=1)

    async def _chunks(
        self, reservation: Reservation, path: str, body: dict[str, Any], *, leading: int
    ) -> AsyncGenerator[dict[str, Any], None]:
        reservation.check_lease()
        async with reservation.limit(self._config.first_token_s):
            response = await self._send(reservation, path, body)
            whole = None if response.content_type == _EVENTS else await _decoded(response, path)
        if whole is not None:
            yield checked_answer(whole)
            return
        async with aclosing(self._events(reservation, response, leading)) as events:
            async for event in events:
                if event == END:
                    continue
                try:
                    chunk = msgspec.json.decode(event)
                except ValueError:
                    raise UpstreamBroken("malformed", "a chunk is not JSON") from None
                yield checked_answer(chunk)

    async def events(
        self, reservation: Reservation, path: str, body: dict[str, Any]
    ) -> AsyncGenerator[bytes, None]:
        """Stream the data of server-sent events, as `generate` does.

        Raises:
            UpstreamBroken: connection lost, deadline missed, replica gone.
            RequestFailed: the replica refused the body.
        """
        reservation.check_lease()
        async with reservation.limit(self._config.first_token_s):
            response = await self._send(reservation, path, body)
        async with aclosing(self._events(reservation, response, leading=0)) as events:
            async for event in events:
                yield event

    async def _events(
        self, reservation: Reservation, response: aiohttp.ClientResponse, leading: int
    ) -> AsyncGenerator[bytes, None]:
        """The response's events, of which the `leading` first come before any token."""
        content, stalled = response.content, UpstreamBroken("stalled", "no event in time")
        stall_timer, stream = StallTimer(lambda: content.set_exception(stalled)), EventStream()
        reservation.when_lost(content.set_exception)
        try:
            stall_timer.begin(self._config.first_token_s)
            while data := await content.readany():
                # Comments, which keep a connection open, do not make a wait longer.
                if events := stream.feed(data):
                    stall_timer.end()
                    for event in events:
                        yield event
                    leading -= len(events)
                    began = leading < 0
                    stall_timer.begin(
                        self._config.between_tokens_s if began else self._config.first_token_s
                    )
            for event in stream.feed(_END_OF_EVENT):
                yield event
        except (aiohttp.ClientError, OSError) as error:
            raise UpstreamBroken("connection", repr(error)) from None
        except EventTooLong as error:
            raise UpstreamBroken("malformed", str(error)) from None
        finally:
            stall_timer.close()
            response.close()

    def _headers(self, reservation: Reservation) -> dict[str, str]:
        return _JSON

    async def _send(
        self, reservation: Reservation, path: str, body: dict[str, Any] | bytes | None
    ) -> aiohttp.ClientResponse:
        assert self._session is not None, "running() comes first"
        data = body if body is None or isinstance(body, bytes) else json_bytes(body)
        try:
            response = await self._session.request(
                "GET" if data is None else "POST",
                reservation.address + path,
                data=data,
                headers={**self._headers(reservation), **TRACE.get()},
                allow_redirects=False,
            )
            if response.status < 300:
                return response
            raw = await response.read()
        except (aiohttp.ClientError, OSError) as error:
            raise UpstreamBroken("connection", repr(error)) from None
        if _is_refusal(response.status):
            raise RequestFailed.passed_on(response.status, raw)
        reason = ENGINE_ERROR if f'"{_ENGINE_ERROR}"'.encode() in raw else "status"
        raise UpstreamBroken(reason, f"{response.status} {raw[:300].decode(errors='replace')}")


async def _decoded(response: aiohttp.ClientResponse, path: str) -> Any:
    try:
        raw = await response.read()
    except (aiohttp.ClientError, OSError) as error:
        raise UpstreamBroken("connection", repr(error)) from None
    finally:
        response.release()
    try:
        return msgspec.json.decode(raw)
    except ValueError:
        raise UpstreamBroken("malformed", f"{path} did not answer with JSON") from None


def checked_answer(answer: Any) -> dict[str, Any]:
    """An answer, or a part of one, that is no error.

    Raises:
        UpstreamBroken: it is an error, or no answer at all.
        RequestFailed: it is an error of the request.
    """
    if not isinstance(answer, dict):
        raise UpstreamBroken("malformed", f"no object: {str(answer)[:300]}")
    error = answer.get("error")
    if error is None:
        return answer
    detail = error if isinstance(error, dict) else {"message": error}
    code = detail.get("code")
    if isinstance(code, int) and _is_refusal(code):
        raise RequestFailed.passed_on(code, json_bytes(answer))
    message = str(detail.get("message", error))[:300]
    raise UpstreamBroken(ENGINE_ERROR if message == _ENGINE_ERROR else "error", message)


def _is_refusal(status: int) -> bool:
    return 400 <= status < 500 and status not in _RETRIED_CLIENT_ERRORS


def socket_factory(silence_s: float) -> Callable[[Any], socket.socket]:
    """Sockets for `aiohttp.TCPConnector` that break when the other host falls silent.

    A replica that stands still, as in a commit, has a host that still acknowledges packets. A host
    that is cut off sends neither an end of the connection nor an answer.

    Args:
        silence_s: after so long without an acknowledgement a connection breaks; rounded up to
            what the kernel counts in, whole seconds for each of its probes.
    """
    pause_s = math.ceil(silence_s / (_UNANSWERED + 1))

    def made(address: Any) -> socket.socket:
        family, kind, protocol, *_ = address
        connection = socket.socket(family, kind, protocol)
        options = {
            # While nothing is under way, such as before an answer: probes.
            (socket.SOL_SOCKET, socket.SO_KEEPALIVE): 1,
            (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE): pause_s,
            (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL): pause_s,
            (socket.IPPROTO_TCP, socket.TCP_KEEPCNT): _UNANSWERED,
            # While something is, such as a request: 15 minutes, were it not for this.
            (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT): math.ceil(silence_s * 1000),
        }
        for (level, option), value in options.items():
            connection.setsockopt(level, option, value)
        return connection

    return made
