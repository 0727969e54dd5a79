"""Requests for workspaces that another replica has."""

import asyncio
import errno
from typing import Any

import aiohttp
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.access.access_control import KEY_NAME
from services.http.json_body import BodyRefused, disconnected, json_bytes, read_body
from services.http.relay import end_to_end, relay, relaying_client
from services.observability.log import Log
from services.observability.metrics import WorkspaceMetrics
from services.protocol.errors import NotReady
from services.reward_service.workspace_api.error_answers import answer_to
from services.reward_service.workspace_api.peer_listener import (
    PREFIX,
    peer_headers,
    without_peer_headers,
)
from services.reward_service.workspace_api.replica_table import (
    ReplicaAddress,
    ReplicaTable,
    replica_of,
)
from services.reward_service.workspaces.config import WorkspacesConfig
from services.reward_service.workspaces.errors import WorkspaceGone
from services.side_by_side import race

_LOG = Log("sandboxes")
_BODILESS = ("GET", "HEAD")
_SNAPSHOTS, _MCP = "snapshots", "mcp"
_MCP_SESSION = b"mcp-session-id"


class Peers:
    """Calls of the other replicas. Must be closed.

    Args:
        table: where they are.
        connect_s: how long a connection to one may take, seconds.

    Attributes:
        table: where they are.
    """

    def __init__(self, table: ReplicaTable, *, connect_s: float) -> None:
        self.table, self._connect_s = table, connect_s
        self._http: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close all connections."""
        if self._http is not None:
            await self._http.close()
            self._http = None

    def is_elsewhere(self, some_id: str) -> bool:
        """Whether a workspace or snapshot of this id is another replica's, or was."""
        return replica_of(some_id) not in (None, self.table.own.name)

    async def others(self) -> list[ReplicaAddress]:
        """All other replicas; none where the cluster's head does not say."""
        try:
            return await self.table.others()
        except NotReady as problem:
            _LOG.warning("workspace_replicas_unknown", problem=str(problem))
            return []

    async def relay(self, some_id: str, scope: Scope, body: bytes, send: Send) -> None:
        """Pass a request on to the replica that has a workspace or snapshot.

        Raises:
            WorkspaceGone: that replica is gone.
            NotReady: it cannot be reached now.
        """
        address, began = await self.address_of(some_id), False

        async def noting(message: Message) -> None:
            nonlocal began
            began = True
            await send(message)

        sent = without_peer_headers(end_to_end(scope["headers"]))
        headers = sent + peer_headers(address, scope.get(KEY_NAME, ""))
        try:
            await relay(self._client(), address.url, scope, body, noting, headers=headers)
            WorkspaceMetrics.forwards.inc(1, {"result": "ok"})
        except (aiohttp.ClientError, TimeoutError) as problem:
            if began:  # the server closes the connection, so the client sees that a part is missing
                _LOG.warning("workspace_answer_cut", replica=address.name, problem=repr(problem))
                raise
            if await self._is_lost(address, problem):
                raise WorkspaceGone(some_id, "lost") from problem
            raise _not_ready(address, problem) from problem

    async def address_of(self, some_id: str) -> ReplicaAddress:
        """The replica that has a workspace or snapshot.

        Raises:
            WorkspaceGone: that replica is gone.
            NotReady: the cluster's head cannot be reached now.
        """
        address = await self.table.find(replica_of(some_id) or "")
        if address is None:
            WorkspaceMetrics.forwards.inc(1, {"result": "lost"})
            raise WorkspaceGone(some_id, "lost")
        return address

    async def call(
        self, address: ReplicaAddress, method: str, *, owner: str, timeout_s: float, body: Any
    ) -> tuple[int, bytes]:
        """Make a call of the collection's own route; returns status and body.

        Raises:
            NotReady: the replica cannot be reached, or is gone.
        """
        headers = {name.decode(): value.decode() for name, value in peer_headers(address, owner)}
        limit = aiohttp.ClientTimeout(total=timeout_s, connect=self._connect_s)
        data = None if body is None else json_bytes(body)
        url = f"{address.url}{PREFIX}"
        try:
            async with self._client().request(
                method, url, headers=headers, data=data, timeout=limit
            ) as answer:
                return answer.status, await answer.read()
        except (aiohttp.ClientError, TimeoutError) as problem:
            await self._is_lost(address, problem)
            raise _not_ready(address, problem) from problem

    async def _is_lost(self, address: ReplicaAddress, problem: Exception) -> bool:
        lost = await self.table.lost(address, refused=_refused(problem))
        WorkspaceMetrics.forwards.inc(1, {"result": "lost" if lost else "unreachable"})
        return lost

    def _client(self) -> aiohttp.ClientSession:
        """Of the running event loop."""
        if self._http is None:
            self._http = relaying_client(connect_s=self._connect_s)
        return self._http


class OwnerForwarder:
    """Middleware that leads a request to the replica that has the workspace of its path.

    Args:
        app: serves everything that is this replica's own.
        peers: the other replicas.
        config: bounds bodies.
    """

    def __init__(self, app: ASGIApp, peers: Peers, config: WorkspacesConfig) -> None:
        self._app, self._peers, self._config = app, peers, config

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or the application's life."""
        some_id = _id_in(scope) if scope["type"] == "http" else ""
        if not some_id or not self._peers.is_elsewhere(some_id):
            await self._app(scope, receive, send)
            return
        try:
            body = b""
            if scope["method"] not in _BODILESS:
                body = await read_body(
                    receive,
                    max_bytes=self._config.max_request_mb << 20,
                    timeout_s=self._config.request_body_s,
                )
            await race(
                {
                    "answer": self._peers.relay(some_id, scope, body, send),
                    "disconnected": disconnected(receive),
                }
            )
        except (WorkspaceGone, NotReady, BodyRefused) as problem:
            await answer_to(problem, some_id)(scope, receive, send)
        except (aiohttp.ClientError, TimeoutError, asyncio.IncompleteReadError):
            return  # logged; the client sees that its answer has no end


def _id_in(scope: Scope) -> str:
    """The workspace or snapshot that a path names; empty for none."""
    path: str = scope["path"]
    parts = path.removeprefix(scope.get("root_path", "")).strip("/").split("/")
    if parts[0] == _SNAPSHOTS and len(parts) > 1:
        return parts[1]
    if parts[0] == _MCP:  # its sessions are named by a header
        named = (value for name, value in scope["headers"] if name == _MCP_SESSION)
        return next(named, b"").decode("latin-1")
    return parts[0]


def _refused(problem: Exception) -> bool:
    """Whether nothing listens at the replica's port any more, so that its process is gone."""
    found = isinstance(problem, aiohttp.ClientConnectorError)
    return found and problem.os_error.errno == errno.ECONNREFUSED  # type: ignore[attr-defined]


def _not_ready(address: ReplicaAddress, problem: Exception) -> NotReady:
    return NotReady(f"replica {address.name} cannot be reached: {problem!r}")
