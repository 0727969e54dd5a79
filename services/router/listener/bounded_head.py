"""HTTP of clients that may send anything: how many connect, and their heads, are bounded."""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from services.router.listener.refused_connections import refused

_HEAD_BYTES = 64 * 1024
_HEAD_S = 60.0


class BoundedHead(HttpToolsProtocol):
    """Cuts off a connection whose next request's head is too long, or does not come.

    The parser has no bound of its own, and uvicorn waits for a first request for ever. Whoever
    comes when `limit_concurrency` is reached is sent away; uvicorn itself would then refuse the
    requests of those who are there.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._in_head, self._head_bytes = False, 0
        self._head_due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """See `asyncio.Protocol`."""
        super().connection_made(transport)
        if self.limit_concurrency is not None and len(self.connections) >= self.limit_concurrency:
            self.connections.discard(self)
            refused.refuse(transport)
            return
        self._head_due = self.loop.call_later(_HEAD_S, transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._head_came()
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
        super().on_headers_complete()
        self.headers: list[tuple[bytes, bytes]] = []  # for trailers, which are no headers

    def _head_came(self) -> None:
        if self._head_due is not None:
            self._head_due.cancel()
            self._head_due = None
