"""Workspaces of MCP sessions: opened at the first call of a tool, closed with the session."""

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self

from pydantic import Field

from services.protocol.errors import InvalidInput
from services.protocol.reward.workspaces import OpenWorkspace
from services.protocol.strict import StrictModel
from services.reward_service.workspaces.errors import UnknownWorkspace, WorkspaceGone
from services.reward_service.workspaces.workspace import Workspace
from services.reward_service.workspaces.workspaces import Workspaces
from services.workspaces.tools import ToolLimits

_LISTS = ("network", "root_folders")


class CallOptions(StrictModel):
    """What a client may set for each call of a tool; see `ToolLimits`.

    Attributes:
        wall_s: seconds of a cell or a command.
        cpu_s: processor seconds of it.
        max_chars: of the text that the agent reads.
    """

    wall_s: float = Field(default=ToolLimits.wall_s, gt=0, le=3600)
    cpu_s: float = Field(default=ToolLimits.cpu_s, gt=0, le=3600)
    max_chars: int = Field(default=ToolLimits.max_chars, ge=1, le=1 << 20)


@dataclass(frozen=True, kw_only=True)
class SessionOptions:
    """What the query of an MCP server's URL asks for, such as `?memory_mb=1024&wall_s=60`.

    Attributes:
        spec: of the workspace.
        limits: of each call.
    """

    spec: OpenWorkspace
    limits: ToolLimits

    @classmethod
    def of_query(cls, query: list[tuple[str, str]]) -> Self:
        """Read a URL's query.

        Raises:
            InvalidInput: a field is unknown, or its value is not usable.
        """
        fields: dict[str, Any] = {}
        for name, value in query:
            if name == "files":
                raise InvalidInput("query: files", value, "Write files by the tool `write`.")
            if name in _LISTS:
                fields.setdefault(name, []).append(value)
            else:
                fields[name] = value
        known = CallOptions.model_fields
        options = CallOptions.from_data(
            {name: fields.pop(name) for name in known if name in fields}, source="query"
        )
        spec = OpenWorkspace.from_data(fields, source="query")
        return cls(spec=spec, limits=ToolLimits(**options.model_dump()))


@dataclass(kw_only=True)
class _Session:
    """A session, and its workspace once it has one."""

    used_at: float
    workspace: Workspace | None = None
    opening: asyncio.Lock = field(default_factory=asyncio.Lock)


class McpSessions:
    """Which workspace belongs to which session. Sessions are known by ids that nobody can guess.

    Args:
        workspaces: of this replica.
        idle_s: the server forgets a session that had no request for so many seconds.
    """

    def __init__(self, workspaces: Workspaces, *, idle_s: float) -> None:
        self._workspaces, self._idle_s = workspaces, idle_s
        self._sessions: dict[str, _Session] = {}

    async def begin(self, session_id: str) -> None:
        """A session begins; those that the server forgot meanwhile end."""
        now = time.monotonic()
        for name, session in list(self._sessions.items()):
            if session.used_at + self._idle_s < now:
                await self.end(name)
        self._sessions[session_id] = _Session(used_at=now)

    async def workspace(self, session_id: str, *, owner: str, spec: OpenWorkspace) -> Workspace:
        """The workspace of a session, opened if it has none.

        Raises:
            WorkspaceGone: it had one that is gone, and the next call opens another; or the session
                has ended.
            QuotaFull: no further one may be open.
            WorkspaceFault: none can be had.
            InvalidInput: the operator does not allow such a workspace.
        """
        if session_id not in self._sessions:
            raise WorkspaceGone(session_id, "closed")
        session = self._sessions[session_id]
        session.used_at = time.monotonic()
        async with session.opening:
            if session.workspace is None:
                session.workspace = await self._workspaces.open(spec, owner=owner)
                if session_id not in self._sessions:  # it ended meanwhile
                    await _close(session.workspace)
            try:
                return self._workspaces.find(session.workspace.id, owner=owner)
            except (WorkspaceGone, UnknownWorkspace):
                session.workspace = None
                raise

    async def end(self, session_id: str) -> None:
        """Close the workspace of a session that is over."""
        session = self._sessions.pop(session_id, None)
        if session is not None and session.workspace is not None:
            await _close(session.workspace)


async def _close(workspace: Workspace) -> None:
    with suppress(WorkspaceGone):
        await workspace.close("closed")
