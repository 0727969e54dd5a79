"""A workspace's proxy on loopback: raw bytes of programs, and servers whose every byte is known."""

import asyncio
import ipaddress
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from services.reward_service.workspaces.network.addresses import IpAddress, NetworkRules
from services.reward_service.workspaces.network.proxy import ProxyLimits, Resolver, WorkspaceProxy

LONG_S = 120.0
"""Deadline of a wait that only a hang reaches, seconds."""


class Server:
    """Answers each connection with the same bytes, once a whole head or all bytes have come.

    Attributes:
        got: the bytes of each connection.
    """

    def __init__(self, answer: bytes, *, reads_all: bool = False) -> None:
        self.got: list[bytes] = []
        self._answer, self._reads_all = answer, reads_all
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        place = len(self.got)
        self.got.append(b"")
        ended = b"0\r\n\r\n" if self._reads_all else b"\r\n\r\n"
        while ended not in self.got[place] and (data := await reader.read(65536)):
            self.got[place] += data
        writer.write(self._answer)
        await writer.drain()
        writer.close()


@asynccontextmanager
async def listening(server: Server, host: str = "127.0.0.1") -> AsyncIterator[Server]:
    """Have a server listen on loopback."""
    listener = await asyncio.start_server(server.serve, host, 0)
    server.port = listener.sockets[0].getsockname()[1]
    async with listener:
        yield server


class Names:
    """A resolver whose answers change from lookup to lookup, and count.

    Attributes:
        asked: the names, in the order of the lookups.
    """

    def __init__(self, **answers: Sequence[str]) -> None:
        self._answers = {name.replace("_", "."): list(found) for name, found in answers.items()}
        self.asked: list[str] = []

    def __call__(self, host: str, port: int) -> list[IpAddress]:
        self.asked.append(host)
        try:
            return [ipaddress.ip_address(host)]
        except ValueError:
            pass
        if host not in self._answers:
            raise OSError("Name or service not known")
        answers = self._answers[host]
        found = answers.pop(0) if len(answers) > 1 else answers[0]
        return [ipaddress.ip_address(one) for one in found.split()]


class ProxyWorld:
    """A proxy and its port."""

    def __init__(self, proxy: WorkspaceProxy, port: int, changed: asyncio.Event) -> None:
        self.proxy, self.port, self._changed = proxy, port, changed

    async def say(self, sent: bytes, *, end: bool = False) -> bytes:
        """Send bytes on a new connection; all that comes back until its end."""
        async with asyncio.timeout(LONG_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            try:
                writer.write(sent)
                if end:
                    writer.write_eof()
                return await _all_of(reader)
            finally:
                writer.close()

    async def ended(self, outcome: str, times: int = 1) -> None:
        """Wait until so many connections have ended so."""
        async with asyncio.timeout(LONG_S):
            while self.proxy.outcomes[outcome] < times:
                self._changed.clear()
                await self._changed.wait()


async def _all_of(reader: asyncio.StreamReader) -> bytes:
    received = b""
    try:
        while data := await reader.read(65536):
            received += data
    except ConnectionResetError:
        received += b"(reset)"
    return received


@asynccontextmanager
async def proxying(
    asked: Sequence[str],
    *,
    literals: Sequence[str] = (),
    limits: ProxyLimits | None = None,
    names: Names | None = None,
) -> AsyncIterator[ProxyWorld]:
    """A proxy for a workspace that asked for these addresses, all of which it may have."""
    rules = NetworkRules([*asked, *literals])
    resolver = Resolver(names or Names())
    changed = asyncio.Event()
    proxy = WorkspaceProxy(
        rules.grant(asked),
        limits=limits or ProxyLimits(),
        resolver=resolver,
        ended=lambda *_: changed.set(),
    )
    inside = socket.create_server(("127.0.0.1", 0))
    proxy.start(inside)
    try:
        yield ProxyWorld(proxy, inside.getsockname()[1], changed)
    finally:
        await proxy.close()
        resolver.close()
