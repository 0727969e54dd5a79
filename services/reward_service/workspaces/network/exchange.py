"""One request of a program through the proxy: read, checked, made anew, and answered."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import h11

from services.reward_service.workspaces.network.addresses import Target
from services.reward_service.workspaces.network.proxy_request import (
    REFUSALS,
    Refused,
    answer_anew,
    request_anew,
    target_of,
)
from services.side_by_side import cancel

_CHUNK, _LINGER_S, _LINGER_BYTES = 65536, 2.0, 1 << 20


class ExchangeLimits(Protocol):
    """Those of `ProxyLimits` that a request needs."""

    @property
    def head_bytes(self) -> int:
        """Of the head of a request or an answer."""

    @property
    def head_s(self) -> float:
        """Seconds in which a request's head must have come."""

    @property
    def idle_s(self) -> float:
        """Seconds in which some byte must move."""


class Traffic:
    """Counts the bytes of a workspace.

    Attributes:
        moved: all of them so far, both ways.
    """

    def __init__(self, most: int) -> None:
        self._most, self.moved = most, 0

    def add(self, size: int) -> None:
        """Count bytes.

        Raises:
            Refused: the workspace has had its share.
        """
        self.moved += size
        if self.moved > self._most:
            problem = f"the programs of this workspace have moved their {self._most} bytes"
            raise Refused("bytes_limit", problem)


@dataclass(frozen=True)
class Streams:
    """Both ends of a connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def close(self) -> None:
        """Close it; what was written is still sent."""
        self.writer.close()

    def abort(self) -> None:
        """Break it off, so that the other side sees that something is missing."""
        self.writer.transport.abort()


class _Clock:
    """Ends a block in which nothing has moved for too long."""

    def __init__(self, idle_s: float) -> None:
        self._idle_s, self._timeout = idle_s, asyncio.timeout(idle_s)

    async def __aenter__(self) -> "_Clock":
        await self._timeout.__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._timeout.__aexit__(*exc)  # type: ignore[arg-type]

    def moved(self) -> None:
        """Something moved."""
        if not self._timeout.expired():
            self._timeout.reschedule(asyncio.get_running_loop().time() + self._idle_s)


class Exchange:
    """One connection of a program; it carries one request.

    Args:
        program: the connection.
        limits: of it.
        traffic: what all connections of the workspace have moved.
    """

    def __init__(self, program: Streams, limits: ExchangeLimits, traffic: Traffic) -> None:
        self._program, self._limits, self._traffic = program, limits, traffic
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=limits.head_bytes)
        self._request: h11.Request | None = None
        self._target = Target(host="", port=0)
        self._answering = False

    async def request(self) -> Target:
        """Read the head of the request.

        Returns:
            What the program wants to reach.

        Raises:
            Refused: it is no request that a proxy can carry out.
            OSError: the program broke off.
        """
        try:
            async with asyncio.timeout(self._limits.head_s):
                event = await self._next(self._http, self._program)
        except TimeoutError:
            problem = f"no whole head within {self._limits.head_s:g} s"
            raise Refused("head_too_slow", problem) from None
        if not isinstance(event, h11.Request):
            raise ConnectionResetError("it closed without a request")
        self._target = target_of(event)
        self._request = event
        return self._target

    async def refuse(self, refusal: Refused) -> None:
        """Answer that it is not done, and why."""
        if self._answering or self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self._program.abort()
            return
        body = f"{refusal.name}: {refusal}\n".encode()
        status = REFUSALS[refusal.name]
        headers = [
            ("content-type", "text/plain; charset=utf-8"),
            ("content-length", str(len(body))),
            ("connection", "close"),
        ]
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(self._limits.head_s):
                answer = h11.Response(status_code=status, headers=headers)
                await self._send(answer, h11.Data(data=body), h11.EndOfMessage())
            await self._linger()

    async def _linger(self) -> None:
        """Read on for a while: to close with unread bytes would take back what was just sent."""
        left = _LINGER_BYTES
        async with asyncio.timeout(_LINGER_S):
            self._program.writer.write_eof()
            while left > 0 and (data := await self._program.reader.read(_CHUNK)):
                left -= len(data)

    async def run(self, server: Streams) -> str:
        """Carry the request out at a server.

        Returns:
            How it ended; see `WorkspaceProxy.outcomes`.
        """
        request = self._request
        assert request is not None, "call request first"
        try:
            async with _Clock(self._limits.idle_s) as clock:
                if request.method == b"CONNECT":
                    await self._tunnel(server, clock)
                    return "tunnel"
                await self._forward(request, server, clock)
            with suppress(OSError, TimeoutError):
                await self._linger()
            return "answered"
        except TimeoutError:
            refusal = Refused("idle", f"no byte moved for {self._limits.idle_s:g} s")
        except h11.ProtocolError as error:
            refusal = Refused("bad_answer", f"{self._target} answers with no HTTP: {error}")
        except Refused as error:
            refusal = error
        except OSError as error:
            if self._answering:
                self._program.abort()
                # Many ends of a tunnel look like this, and only its two sides know which.
                return "tunnel" if request.method == b"CONNECT" else "dropped"
            refusal = Refused("bad_answer", f"{self._target} broke off: {error}")
        await self.refuse(refusal)
        return refusal.name

    async def _next(self, http: h11.Connection, streams: Streams) -> object:
        """The next event of a side.

        Raises:
            Refused: what came is no HTTP, or ended too early.
        """
        while (event := self._read_event(http)) is h11.NEED_DATA:
            if http.they_are_waiting_for_100_continue and http is self._http:
                await self._send(h11.InformationalResponse(status_code=100, headers=[]))
            data = await streams.reader.read(_CHUNK)
            self._traffic.add(len(data))
            http.receive_data(data)
        return event

    def _read_event(self, http: h11.Connection) -> object:
        try:
            return http.next_event()
        except h11.RemoteProtocolError as error:
            if http is not self._http:
                problem = f"{self._target} does not answer with HTTP: {error}"
                raise Refused("bad_answer", problem) from None
            large = error.error_status_hint == REFUSALS["head_too_large"]
            raise Refused("head_too_large" if large else "bad_request", str(error)) from None

    async def _send(self, *events: h11.Event) -> None:
        """Write to the program."""
        parts = [self._http.send(event) for event in events]
        await self._write(self._program, b"".join(part for part in parts if part))

    async def _write(self, streams: Streams, data: bytes) -> None:
        streams.writer.write(data)
        await streams.writer.drain()

    # A tunnel: bytes both ways.

    async def _tunnel(self, server: Streams, clock: _Clock) -> None:
        while not isinstance(await self._next(self._http, self._program), h11.EndOfMessage):
            pass
        self._answering = True
        await self._send(h11.Response(status_code=200, headers=[], reason=b"OK"))
        early, _ = self._http.trailing_data
        if early:
            await self._write(server, early)
        ways = [
            asyncio.create_task(self._copy(self._program, server, clock), name="proxied_up"),
            asyncio.create_task(self._copy(server, self._program, clock), name="proxied_down"),
        ]
        try:
            await asyncio.gather(*ways)
        finally:
            await cancel(*ways)

    async def _copy(self, source: Streams, sink: Streams, clock: _Clock) -> None:
        while data := await source.reader.read(_CHUNK):
            self._traffic.add(len(data))
            await self._write(sink, data)
            clock.moved()
        if sink.writer.can_write_eof():
            sink.writer.write_eof()

    # A plain request: read and written anew.

    async def _forward(self, request: h11.Request, server: Streams, clock: _Clock) -> None:
        upstream = h11.Connection(h11.CLIENT, max_incomplete_event_size=self._limits.head_bytes)
        await self._write(server, upstream.send(request_anew(request, self._target)) or b"")
        sending = asyncio.create_task(self._send_body(upstream, server, clock), name="proxied_up")
        answering = asyncio.create_task(self._answer(upstream, server, clock), name="proxied_down")
        try:
            await asyncio.wait((sending, answering), return_when=asyncio.FIRST_COMPLETED)
            if not answering.done():
                sending.result()  # raises what is wrong with the request's body
            await answering
        finally:
            await cancel(sending, answering)

    async def _send_body(self, upstream: h11.Connection, server: Streams, clock: _Clock) -> None:
        """Pass the request's body on; a server that does not want it may still answer."""
        event: object = None
        while not isinstance(event, h11.EndOfMessage):
            event = await self._next(self._http, self._program)
            clock.moved()
            sent = h11.Data(data=bytes(event.data)) if isinstance(event, h11.Data) else None
            data = upstream.send(sent or h11.EndOfMessage())
            try:
                await self._write(server, data or b"")
            except OSError:
                return

    async def _answer(self, upstream: h11.Connection, server: Streams, clock: _Clock) -> None:
        while True:
            event = await self._next(upstream, server)
            clock.moved()
            if isinstance(event, h11.Response):
                self._answering = True
                await self._send(answer_anew(event))
            elif isinstance(event, h11.Data):
                await self._send(h11.Data(data=bytes(event.data)))
            elif isinstance(event, h11.EndOfMessage):
                await self._send(h11.EndOfMessage())
                return
            elif isinstance(event, h11.ConnectionClosed):
                raise ConnectionResetError("it closed without an answer")
