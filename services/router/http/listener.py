"""The router's own port, for clients that shall not pay for Serve's proxy.

The same application, with the same keys and bounds, in the same process and event loop.
Several routers on one machine share the port: the kernel spreads connections over them.
"""

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

from services.router.config import ListenConfig
from services.router.http.bounded_head import BoundedHead

_BACKLOG = 4096
_START_S = 30.0
_DRAIN_S = 45  # less than Serve waits for a replica to stop


class Listener:
    """One uvicorn server in the running event loop.

    Attributes:
        port: known once it is started; that of the configuration, unless that is 0.
    """

    def __init__(self, config: ListenConfig) -> None:
        self._config = config
        self.port = config.port
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self, app: ASGIApp) -> None:
        """Listen, and serve `app`, whose lifespan is somebody else's.

        Raises:
            OSError: the address cannot be had.
            TimeoutError: the server did not come up.
        """
        listener = _bound(self._config)
        self.port = listener.getsockname()[1]
        self._server = _Server(
            uvicorn.Config(
                app,
                http=BoundedHead,
                lifespan="off",
                log_config=None,
                access_log=False,
                proxy_headers=False,
                server_header=False,
                backlog=_BACKLOG,
                limit_concurrency=self._config.max_connections + 1,
                timeout_graceful_shutdown=_DRAIN_S,
            )
        )
        self._task = asyncio.create_task(self._server.serve([listener]), name="listener")
        async with asyncio.timeout(_START_S):
            await self._server.listening.wait()

    @property
    def requests(self) -> int:
        """Requests that are not answered yet."""
        return len(self._server.server_state.tasks) if self._server else 0

    async def stop(self) -> None:
        """Take no more connections, and end when those that are open have their answers."""
        if self._server is not None and self._task is not None:
            self._server.should_exit = True
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None


class _Server(uvicorn.Server):
    """Leaves the process's signals alone, and says when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _bound(config: ListenConfig) -> socket.socket:
    # asyncio turns Nagle's delay of 40 ms off only where the protocol is named.
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listener.bind((config.host, config.port))
    except OSError:
        listener.close()
        raise
    return listener
