"""The response of one request for an answer, whole or as server-sent events."""

from typing import Any

from starlette.types import Send

from services.http.event_stream import StallTimer
from services.http.json_body import json_bytes
from services.router.doors.door import Door
from services.router.errors import RequestFailed


class HttpAnswer:
    """Writes an HTTP response; each write must be taken within `write_s` seconds.

    Args:
        send: of the ASGI application.
        write_s: see above.
        door: how errors are told.

    Attributes:
        door: see above.
        stall_timer: ends a write that is not; None while nothing watches.
    """

    def __init__(self, send: Send, write_s: float, door: Door) -> None:
        self._send, self._write_s, self.door = send, write_s, door
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

    async def events(self, events: bytes) -> None:
        """Server-sent events, as they are written."""
        if events:
            await self._write(events, more=True)

    async def comment(self, text: str) -> None:
        """A line that clients leave out, in the stream, which it begins if need be."""
        if not self.begun:
            await self.begin_stream({})
        await self._send(
            {"type": "http.response.body", "body": b": %b\n\n" % text.encode(), "more_body": True}
        )

    async def end_stream(self, last: bytes) -> None:
        """The last events, and the end."""
        await self._write(last, more=False)

    async def fail(self, failure: RequestFailed) -> None:
        """An error, as a response or inside a stream."""
        if self.begun:
            await self.end_stream(self.door.error_events(failure))
            return
        await self.whole(failure.status, self.door.error(failure), failure.headers)

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
