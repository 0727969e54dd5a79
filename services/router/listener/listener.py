"""The router's own port: where clients reach the cluster.

The same application as behind Serve's proxy, with the same keys and bounds, in the same process
and event loop, and without the proxy's cost. Several routers of one machine share the port.
"""

import asyncio
import contextlib
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from services.http.cut_off import ABORT, STUCK
from services.observability.log import Log
from services.protocol.errors import InvalidInput
from services.router.config import ListenConfig
from services.router.listener.connection_bound import ACCEPTED_AT_ONCE, refused
from services.router.listener.listening_socket import ListeningSocket, OwnListeningSocket
from services.router.listener.socket_holder import BACKLOG

_LOG = Log("router")
_START_S = 30.0
_IDLE_S = 20.0
"""Longer than clients keep an idle connection (aiohttp 15 s, httpx 5 s), so that they close it
first and no request meets a closing connection."""
_POLL_S = 0.1
_HEAD_BYTES = 64 * 1024
_HEAD_S = 60.0
_WRITE_S = 600.0


class Listener:
    """One uvicorn server in the running event loop.

    Args:
        config: where it listens.
        source: where the listening socket comes from; None: it makes one.
        write_s: a client that takes nothing of its answer for so long, or for up to twice as
            long, is cut off.

    Attributes:
        port: known once it is started; that of the configuration, unless that is 0.
    """

    def __init__(
        self,
        config: ListenConfig,
        source: ListeningSocket | None = None,
        *,
        write_s: float = _WRITE_S,
    ) -> None:
        self._config, self._source = config, source or OwnListeningSocket()
        self._write_s = write_s
        self.port = config.port
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self, app: ASGIApp, ready: Callable[[], Awaitable[bool]] | None = None) -> None:
        """Listen, and serve `app` without its lifespan.

        Args:
            app: the application.
            ready: waited for before a connection is accepted, behind the return of this method;
                connections wait meanwhile, but not for ever: False means that nothing came.

        Raises:
            InvalidInput: the address cannot be had, or the certificate cannot be used.
            TimeoutError: the server did not come up.
        """
        settings = _uvicorn_config(app, self._config, write_s=self._write_s)
        listening = await self._source.open(self._config)
        self.port = listening.getsockname()[1]
        self._server = _Server(settings)
        refused.watch(asyncio.get_running_loop())
        serving = _serve_when(ready, self._server, listening)
        self._task = asyncio.create_task(serving, name="listener")
        if ready is None:
            async with asyncio.timeout(_START_S):
                await self._server.listening.wait()

    @property
    def requests(self) -> int:
        """Requests that are not answered yet."""
        return len(self._server.server_state.tasks) if self._server else 0

    async def stop(self, *, ending: bool = True) -> None:
        """Take no more connections, and end when those that are open have their answers.

        Args:
            ending: the application ends, and its clients with it; otherwise others serve on, and
                each answer asks its client to connect again.
        """
        if self._server is None or self._task is None:
            return
        deadline = time.monotonic() + self._config.drain_s
        if not self._server.listening.is_set():
            self._task.cancel()
        self._server.stop_accepting()
        self._source.close(ending=ending)
        if not ending:
            await self._server.connections_closed(idle_s=_IDLE_S, deadline=deadline)
        left_s = max(0.0, deadline - time.monotonic())
        self._server.config.timeout_graceful_shutdown = round(left_s)
        self._server.should_exit = True
        await asyncio.gather(self._task, return_exceptions=True)
        self._task = None


async def _serve_when(
    ready: Callable[[], Awaitable[bool]] | None, server: "_Server", listening: socket.socket
) -> None:
    try:
        if ready is not None and not await ready():
            _LOG.warning("not_seen_running")
    except asyncio.CancelledError:
        listening.close()
        raise
    await server.serve([listening])


class BoundedConnection(HttpToolsProtocol):
    """Cuts off a connection whose next request's head is too long, or does not come.

    The parser has no bound of its own, and uvicorn waits for a first request for ever. A
    connection that comes when `limit_concurrency` is reached is refused; uvicorn itself would then
    refuse the requests of the connections that are open.

    It also cuts off a client that takes nothing of what is written to it: uvicorn only closes
    connections, and one that is closed keeps its place until its client has taken the rest.

    Args:
        write_s: see `Listener`.
    """

    def __init__(self, *args: Any, write_s: float = _WRITE_S, **options: Any) -> None:
        super().__init__(*args, **options)
        self._in_head, self._head_bytes = False, 0
        self._head_due: asyncio.TimerHandle | None = None
        self._write_s = write_s
        self._stuck_due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See `asyncio.Protocol`."""
        super().connection_made(transport)
        if self.limit_concurrency is not None and len(self.connections) >= self.limit_concurrency:
            self.connections.discard(self)
            refused.refuse(transport)
            return
        # So that `pause_writing` is told of all that waits, a few bytes included.
        transport.set_write_buffer_limits(high=1, low=0)
        self._head_due = self.loop.call_later(_HEAD_S, transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._head_came()
        self._all_taken()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        super().data_received(data)
        # Also empty lines between two requests come instead of a head.
        idle = self.cycle is None or self.cycle.response_complete
        if not (self._in_head or idle):
            return
        self._head_bytes += len(data) * self._in_head
        if self._head_bytes > _HEAD_BYTES:
            self.send_400_response("The request's head is too long.")
        elif self._head_due is None:
            self._head_due = self.loop.call_later(_HEAD_S, self.transport.close)

    def on_message_begin(self) -> None:
        """See `httptools`."""
        super().on_message_begin()
        self._in_head, self._head_bytes = True, 0

    def on_headers_complete(self) -> None:
        """See `httptools`."""
        self._in_head = False
        self._head_came()
        self.scope[ABORT] = self.transport.abort  # type: ignore[literal-required]
        super().on_headers_complete()
        self.headers: list[tuple[bytes, bytes]] = []  # for trailers, which are no headers

    def pause_writing(self) -> None:
        """See `asyncio.Protocol`."""
        super().pause_writing()
        self._look_again(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """See `asyncio.Protocol`."""
        self._all_taken()
        super().resume_writing()

    def _look_again(self, left: int) -> None:
        self._stuck_due = self.loop.call_later(self._write_s, self._cut_off_if_stuck, left)

    def _cut_off_if_stuck(self, left_before: int) -> None:
        left = self.transport.get_write_buffer_size()
        if left < left_before:
            self._look_again(left)
        else:
            if self.cycle is not None:
                self.cycle.scope[STUCK] = True  # type: ignore[literal-required]
            self.transport.abort()

    def _all_taken(self) -> None:
        if self._stuck_due is not None:
            self._stuck_due.cancel()
            self._stuck_due = None

    def _head_came(self) -> None:
        if self._head_due is not None:
            self._head_due.cancel()
            self._head_due = None


class _Server(uvicorn.Server):
    """Leaves the process's signals alone, says when it listens, and can end connections gently."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: Any = None) -> None:
        await super().startup(sockets)
        for listening in sockets or ():
            listening.listen(BACKLOG)  # asyncio has taken what it accepts at once for the kernel's
        self.listening.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def stop_accepting(self) -> None:
        """Close this process's part of the port; open connections stay."""
        for server in getattr(self, "servers", ()):  # which it has when it has started
            server.close()

    async def connections_closed(self, *, idle_s: float, deadline: float) -> None:
        """Return when no connection is open, only such as have been idle, or it is too late.

        Args:
            idle_s: how long, seconds.
            deadline: by the monotonic clock.
        """
        # uvicorn closes a connection after an answer with this, and makes the one list from the
        # other every second.
        for headers in (self.config.encoded_headers, self.server_state.default_headers):
            headers.append((b"connection", b"close"))
        busy_at = time.monotonic()
        await asyncio.sleep(_POLL_S)  # what was accepted just before is a connection after that
        while self.server_state.connections:
            now = time.monotonic()
            busy_at = now if self.server_state.tasks else busy_at
            if now - busy_at > idle_s or now > deadline:
                return
            await asyncio.sleep(_POLL_S)


def _uvicorn_config(app: ASGIApp, config: ListenConfig, *, write_s: float) -> uvicorn.Config:
    settings = uvicorn.Config(
        app,
        http=partial(BoundedConnection, write_s=write_s),  # type: ignore[arg-type]
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=ACCEPTED_AT_ONCE,
        limit_concurrency=config.max_connections + 1,
        timeout_keep_alive=round(2 * _IDLE_S),
        ws="none",
        ssl_certfile=config.ssl_certfile,
        ssl_keyfile=config.ssl_keyfile,
    )
    try:
        settings.load()
    except OSError as error:  # of files, and of TLS
        fix = f"It must be a certificate chain and its key in PEM, readable here: {error}."
        field = "router.args.listen.ssl_certfile"
        raise InvalidInput(field, config.ssl_certfile, fix) from None
    return settings
