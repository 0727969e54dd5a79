"""Where a replica takes requests that another replica got, with a secret of its own."""

import asyncio
import hmac
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import quote, unquote

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from services.access.access_control import KEY_NAME
from services.http.error_answer import error_answer
from services.reward_service.workspace_api.replica_table import ReplicaAddress

PREFIX = "/v1/sandboxes"
"""The route of the application, at Serve and here."""

FROM_PEER = "millrace.from_peer"
"""In the scope of a request that another replica passed on."""

_BACKLOG = 1024
_START_S = 30.0
_GRACE_S = 2
_POLL_S = 0.01
_SECRET, _OWNER = b"x-millrace-secret", b"x-millrace-owner"


def peer_headers(address: ReplicaAddress, owner: str) -> list[tuple[bytes, bytes]]:
    """What a request of another replica shows: that it may, and for whom it is."""
    return [(_SECRET, address.secret.encode()), (_OWNER, quote(owner, safe="").encode())]


def without_peer_headers(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """What a client sent, but for what only replicas may send and keys that are not passed on."""
    own = (_SECRET, _OWNER, b"authorization", b"content-length", b"host")
    return [(name, value) for name, value in headers if name not in own]


class PeerListener:
    """One HTTP server in the running event loop, on a port of its own.

    Attributes:
        address: of this replica.

    Args:
        name: of this replica.
        host: address to listen on; others reach the replica there.
    """

    def __init__(self, name: str, host: str) -> None:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # The protocol is named so that asyncio turns Nagle's delay off.
        self._socket = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        self._socket.bind((host, 0))
        self._socket.listen(_BACKLOG)
        shown = f"[{host}]" if ":" in host else host
        url = f"http://{shown}:{self._socket.getsockname()[1]}"
        self.address = ReplicaAddress(name=name, url=url, secret=secrets.token_urlsafe(32))
        self._server: _Server | None = None
        self._task: asyncio.Task[None] | None = None

    async def start(self, app: ASGIApp) -> None:
        """Serve `app`, without its lifespan, to those who know the secret.

        Raises:
            TimeoutError: the server did not come up.
        """
        guarded = PeerGuard(app, self.address.secret)
        settings = uvicorn.Config(
            guarded,
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=_GRACE_S,
        )
        self._server = _Server(settings)
        serving = self._server.serve(sockets=[self._socket])
        self._task = asyncio.create_task(serving, name="peer_listener")
        async with asyncio.timeout(_START_S):
            while not self._server.started:
                if self._task.done():
                    await self._task
                    raise RuntimeError("the listener ended while starting")
                await asyncio.sleep(_POLL_S)

    async def stop(self) -> None:
        """Close the port; open requests are cut after a short grace."""
        if self._server is not None and self._task is not None:
            self._server.should_exit = True
            await asyncio.gather(self._task, return_exceptions=True)
        with suppress(OSError):
            self._socket.close()


class PeerGuard:
    """Lets requests of other replicas pass, as those of the owner that they name."""

    def __init__(self, app: ASGIApp, secret: str) -> None:
        self._app, self._secret = app, secret.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        headers = dict(scope.get("headers", []))
        if not hmac.compare_digest(headers.get(_SECRET, b""), self._secret):
            fix = "This port is for replicas of the service alone."
            await error_answer(403, "x-millrace-secret", "(not shown)", fix)(scope, receive, send)
            return
        scope.update({"root_path": PREFIX, FROM_PEER: True})
        if owner := unquote(headers.get(_OWNER, b"").decode("ascii", "replace")):
            scope[KEY_NAME] = owner
        await self._app(scope, receive, send)


class _Server(uvicorn.Server):
    """Leaves the process's signals alone: they are Serve's."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """See `uvicorn.Server`."""
        yield
