"""The HTTP proxy of one workspace: its programs' only way to the network.

It accepts on a socket that listens inside of the workspace's network namespace, takes one request
a connection (`CONNECT host:port`, or a URL with its host), and connects by itself, once, to an
address that it has resolved and checked. Nothing that a program says is passed on as it came:
requests and answers are read and written anew, so both ends see the same one message.
"""

import asyncio
import ipaddress
import socket
from collections import Counter
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

from services.observability.log import Log
from services.reward_service.workspaces.network.addresses import (
    IpAddress,
    NetworkGrant,
    Target,
    own_addresses,
    plain,
)
from services.reward_service.workspaces.network.exchange import Exchange, Streams, Traffic
from services.reward_service.workspaces.network.proxy_request import Refused
from services.side_by_side import cancel

_CHUNK, _PAUSE_S, _MOST_ADDRESSES = 65536, 0.1, 4
_log = Log("sandboxes")

Resolve = Callable[[str, int], list[IpAddress]]


def proxy_environment(port: int) -> dict[str, str]:
    """Environment variables by which programs find the proxy at this port of their loopback."""
    url = f"http://127.0.0.1:{port}"
    direct = "localhost,127.0.0.1,::1"
    ways = {"http_proxy": url, "https_proxy": url, "no_proxy": direct}
    return ways | {name.upper(): value for name, value in ways.items()}


@dataclass(frozen=True, kw_only=True)
class ProxyLimits:
    """Bounds of one workspace's traffic.

    Attributes:
        connections: at a time; more wait.
        total_bytes: of all connections together, both ways.
        head_bytes: of the head of a request or an answer.
        head_s: seconds in which a request's head must have come.
        resolve_s: seconds for a name.
        connect_s: seconds for a connection, over all addresses of a name.
        idle_s: seconds in which some byte must move.
    """

    connections: int = 16
    total_bytes: int = 1 << 30
    head_bytes: int = 32768
    head_s: float = 10.0
    resolve_s: float = 10.0
    connect_s: float = 10.0
    idle_s: float = 60.0


class Resolver:
    """Looks names up beside the event loop, a few at a time; shared by all workspaces.

    Args:
        resolve: the addresses of a name.
        threads: lookups at a time.
        waiting: lookups in progress and waiting; more are refused.
    """

    def __init__(
        self, resolve: Resolve | None = None, *, threads: int = 4, waiting: int = 64
    ) -> None:
        self._resolve = resolve or _system_addresses
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="resolve")
        self._free = waiting

    async def addresses(self, target: Target, *, timeout_s: float) -> list[IpAddress]:
        """The addresses of a target, in the order to try them.

        Raises:
            Refused: there are none, or none came in time.
        """
        if self._free == 0:
            raise Refused("resolver_busy", f"too many names are looked up; {target} is not")
        self._free -= 1
        loop = asyncio.get_running_loop()
        lookup = loop.run_in_executor(self._threads, self._resolve, target.host, target.port)
        lookup.add_done_callback(self._ended)
        try:
            async with asyncio.timeout(timeout_s):
                found = await asyncio.shield(lookup)
        except TimeoutError:
            problem = f"{target.host} was not resolved in {timeout_s:g} s"
            raise Refused("resolve_timeout", problem) from None
        except (OSError, UnicodeError) as error:
            raise Refused("resolve_failed", f"{target.host}: {error}") from None
        return list(dict.fromkeys(plain(one) for one in found))

    def _ended(self, lookup: asyncio.Future[list[IpAddress]]) -> None:
        self._free += 1
        if not lookup.cancelled():
            lookup.exception()  # its reader may have gone

    def close(self) -> None:
        """Begin no further lookup."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _system_addresses(host: str, port: int) -> list[IpAddress]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [ipaddress.ip_address(str(place[0]).partition("%")[0]) for *_, place in found]


class WorkspaceProxy:
    """Serves one workspace until it is closed.

    Args:
        grant: what its programs may reach.
        limits: of its traffic.
        resolver: shared by all workspaces.
        ended: called with the name of each connection's end (see `outcomes`) and the bytes that
            the workspace moved since the last one.
        own: addresses of this machine.

    Attributes:
        outcomes: connections by how they ended: `answered`, `tunnel`, or the name of a refusal
            (see `proxy_request.REFUSALS`), or `dropped`: the program or the server broke off.
    """

    def __init__(
        self,
        grant: NetworkGrant,
        *,
        limits: ProxyLimits,
        resolver: Resolver,
        ended: Callable[[str, int], None] = lambda *_: None,
        own: Callable[[], Collection[IpAddress]] = own_addresses,
    ) -> None:
        self._grant, self._limits, self._resolver = grant, limits, resolver
        self._ended, self._own = ended, own
        self._traffic = Traffic(limits.total_bytes)
        self._slots = asyncio.Semaphore(limits.connections)
        self._accepting: asyncio.Task[None] | None = None
        self._open: set[asyncio.Task[None]] = set()
        self._told = 0
        self.outcomes: Counter[str] = Counter()

    def start(self, listening: socket.socket) -> None:
        """Serve this socket, which the proxy closes in the end."""
        listening.setblocking(False)
        self._accepting = asyncio.create_task(self._accept(listening), name="workspace_proxy")

    async def close(self) -> None:
        """End all connections and close the socket."""
        await cancel(self._accepting)
        await cancel(*self._open)

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        with listening:
            while True:
                await self._slots.acquire()  # those beyond wait in the kernel's queue
                try:
                    connection, _ = await loop.sock_accept(listening)
                except OSError as error:  # such as too many open files
                    self._slots.release()
                    self._count("accept_failed")
                    _log.warning("proxy_accept_failed", error=str(error))
                    await asyncio.sleep(_PAUSE_S)
                    continue
                serving = asyncio.create_task(self._serve(connection), name="proxied")
                self._open.add(serving)
                serving.add_done_callback(self._forget)

    def _forget(self, serving: asyncio.Task[None]) -> None:
        self._open.discard(serving)
        self._slots.release()

    def _count(self, outcome: str) -> None:
        self.outcomes[outcome] += 1
        moved, self._told = self._traffic.moved - self._told, self._traffic.moved
        self._ended(outcome, moved)

    async def _serve(self, connection: socket.socket) -> None:
        """One connection of a program."""
        outcome = "dropped"
        try:
            program = Streams(*await asyncio.open_connection(sock=connection, limit=_CHUNK))
            try:
                outcome = await self._exchange(Exchange(program, self._limits, self._traffic))
            finally:
                program.close()
        except OSError:
            pass
        except Exception as error:  # noqa: BLE001  the edge of the accept loop; counted
            outcome = "proxy_failed"
            _log.exception("proxy_failed", error=repr(error))
        finally:
            self._count(outcome)

    async def _exchange(self, exchange: Exchange) -> str:
        try:
            target = await exchange.request()
            if not self._grant.allows(target):
                problem = f"{target} is none of the addresses that this workspace may reach"
                raise Refused("not_allowed", problem)
            server = await self._connect(target)
        except Refused as refusal:
            await exchange.refuse(refusal)
            return refusal.name
        try:
            return await exchange.run(server)
        finally:
            server.close()

    async def _connect(self, target: Target) -> Streams:
        """A connection to the first address of a target that may be had and answers.

        Raises:
            Refused: there is none.
        """
        limits = self._limits
        addresses = await self._resolver.addresses(target, timeout_s=limits.resolve_s)
        own = self._own()
        refusals = [self._grant.refusal(one, target.port, own) for one in addresses]
        allowed = [one for one, refusal in zip(addresses, refusals, strict=True) if not refusal]
        if not allowed:
            said = "; ".join(
                f"{one}: {refusal}" for one, refusal in zip(addresses, refusals, strict=True)
            )
            raise Refused(
                "address_refused", f"{target} leads to no address that may be had: {said}"
            )
        tried = allowed[:_MOST_ADDRESSES]
        problem = Refused("connect_failed", f"no address of {target} takes connections")
        for address in tried:
            try:
                async with asyncio.timeout(limits.connect_s / len(tried)):
                    # By its number: nothing is resolved a second time.
                    opened = asyncio.open_connection(str(address), target.port, limit=_CHUNK)
                    return Streams(*await opened)
            except TimeoutError:
                text = f"{address}, port {target.port}, does not answer"
                problem = Refused("connect_timeout", text)
            except OSError as error:
                text = f"{address}, port {target.port}: {error.strerror or error}"
                problem = Refused("connect_failed", text)
        raise problem


def listening_socket(descriptor: int) -> socket.socket:
    """The socket of a descriptor that a workspace's agent sent; the caller's from now on.

    Raises:
        ValueError: it is no listening TCP socket.
    """
    opened = socket.socket(fileno=descriptor)
    with suppress(OSError):
        if (
            opened.family == socket.AF_INET
            and opened.type == socket.SOCK_STREAM
            and opened.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        ):
            return opened
    opened.close()
    raise ValueError("the descriptor is no listening TCP socket")
