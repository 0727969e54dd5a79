"""Workspaces as an MCP server: https://modelcontextprotocol.io, streamable HTTP.

At `/mcp` each session has a workspace of its own. At `/{id}/mcp` the tools are of the workspace
that somebody has opened by the HTTP API, who can therefore fill it first and grade it afterwards.
MCP of 2026-07-28 has no sessions: its clients begin one as their older selves at the first
address, and need none at the second.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import mcp_types as types
from mcp import MCPError
from mcp.server.auth.middleware.bearer_auth import AuthenticatedUser
from mcp.server.auth.provider import AccessToken
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS
from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from services.access.access_control import KEY_NAME
from services.http.error_answer import error_answer
from services.http.json_body import AsciiJson, BodyRefused, read_body
from services.protocol.errors import InvalidInput
from services.reward_service.workspace_api.error_answers import answer_to
from services.reward_service.workspace_api.mcp_sessions import McpSessions, SessionOptions
from services.reward_service.workspaces.config import WorkspacesConfig
from services.reward_service.workspaces.errors import (
    JailLost,
    QuotaFull,
    UnknownWorkspace,
    WorkspaceFault,
    WorkspaceGone,
)
from services.reward_service.workspaces.workspace import Workspace
from services.reward_service.workspaces.workspaces import Workspaces
from services.side_by_side import running
from services.workspaces.tools import TOOLS, description, input_schema, use_tool

SESSION = b"mcp-session-id"
"""Header with the id of a session."""

_VERSION = b"mcp-protocol-version"
_WORKSPACE = "millrace.workspace"
_INSTRUCTIONS = (
    "A workspace with files, a shell and a Python interpreter. Files and variables stay between "
    "calls of one session."
)
_SESSIONS_PER_WORKSPACE = 8
"""Sessions that a client opens and never uses cost little, and yet not nothing."""

_OWN_DOING = ("memory", "disk")
_START_S = 30.0


class McpServer:
    """An ASGI application. Its routes lead here, and `running` is around its life.

    Args:
        workspaces: of this replica.
        config: bounds bodies, sessions and idle times.
        replica: name that the ids of sessions begin with, so that any replica can tell whose
            they are.
    """

    def __init__(self, workspaces: Workspaces, config: WorkspacesConfig, *, replica: str) -> None:
        self._workspaces, self._config = workspaces, config
        self._prefix = f"{replica}-".encode()
        self._sessions = McpSessions(workspaces, idle_s=config.max_idle_s)
        server: Server[Any] = Server(
            "millrace-sandboxes",
            instructions=_INSTRUCTIONS,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
        )
        self._manager = StreamableHTTPSessionManager(
            server,
            session_idle_timeout=config.max_idle_s,
            max_sessions=_SESSIONS_PER_WORKSPACE * config.max_open,
            max_request_body_size=config.max_request_mb << 20,
        )

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Serve requests during the block."""
        ready = asyncio.Event()
        async with running(self._serve(ready), name="mcp"):
            async with asyncio.timeout(_START_S):
                await ready.wait()
            yield

    async def _serve(self, ready: asyncio.Event) -> None:
        """Hold the library's task group, which one task must both open and close."""
        async with self._manager.run():
            ready.set()
            await asyncio.Event().wait()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request; `path_params` of its scope may name a workspace."""
        named = scope.get("path_params", {}).get("workspace_id")
        refusal = self._refusal(scope, has_workspace=named is not None)
        if refusal is not None:
            await refusal(scope, receive, send)
            return
        try:
            receive = await self._whole_body(scope, receive)
        except BodyRefused as error:
            await answer_to(error)(scope, receive, send)
            return
        headers = [(name, self._inside(name, value)) for name, value in scope["headers"]]
        session = next((value for name, value in headers if name == SESSION), b"").decode("latin-1")
        owner = scope.get(KEY_NAME, "")
        if named is not None:
            try:
                self._workspaces.find(named, owner=owner)
            except (UnknownWorkspace, WorkspaceGone) as error:
                await answer_to(error, named)(scope, receive, send)
                return
        # The library lets a session be used only by whom it was begun.
        token = AccessToken(token="", client_id=owner, scopes=[])
        scope = {**scope, "headers": headers, "user": AuthenticatedUser(token), _WORKSPACE: named}

        async def passing(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = await self._outside(message, session, scope["method"])
            await send(message)

        await self._manager.handle_request(scope, receive, passing)

    async def _whole_body(self, scope: Scope, receive: Receive) -> Receive:
        """What gives the body, once it has come, and then what the client does.

        Raises:
            BodyRefused: it is too large or too slow.
        """
        if scope["method"] != "POST":
            return receive
        config = self._config
        body = await read_body(
            receive, max_bytes=config.max_request_mb << 20, timeout_s=config.request_body_s
        )
        messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replayed() -> Message:
            return messages.pop() if messages else await receive()

        return replayed

    def _refusal(self, scope: Scope, *, has_workspace: bool) -> AsciiJson | None:
        if scope["method"] == "GET":
            # Its stream would carry what a server says unasked, which this one never does.
            fix = "Use POST; this server sends nothing unasked."
            answer = error_answer(405, "method", "GET", fix)
            answer.headers["allow"] = "POST, DELETE"
            return answer
        version = dict(scope["headers"]).get(_VERSION, b"").decode("latin-1")
        if not has_workspace and version and version not in HANDSHAKE_PROTOCOL_VERSIONS:
            return _no_sessions(version)
        try:
            SessionOptions.of_query(Request(scope).query_params.multi_items())
        except InvalidInput as error:
            return error_answer(400, error.field, error.value, error.fix)
        return None

    def _inside(self, name: bytes, value: bytes) -> bytes:
        return value.removeprefix(self._prefix) if name == SESSION else value

    async def _outside(self, message: Message, session: str, method: str) -> Message:
        """Note what an answer says of its session, and show the session's id with its replica."""
        headers = []
        for name, value in message["headers"]:
            if name.lower() == SESSION:
                if not session:
                    await self._sessions.begin(value.decode("latin-1"))
                value = self._prefix + value
            headers.append((name, value))
        is_over = message["status"] == 404 or (method == "DELETE" and message["status"] < 300)
        if session and is_over:
            await self._sessions.end(session)
        return {**message, "headers": headers}

    async def _list_tools(
        self, _: ServerRequestContext[Any, Any], __: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        return types.ListToolsResult(
            tools=[
                types.Tool(
                    name=name, description=description(name), input_schema=input_schema(name)
                )
                for name in TOOLS
            ]
        )

    async def _call_tool(
        self, context: ServerRequestContext[Any, Any], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        request: Request = context.request
        options = SessionOptions.of_query(request.query_params.multi_items())
        try:
            workspace = await self._workspace(request, options)
            answer = await use_tool(workspace, params.name, params.arguments, options.limits)
        except InvalidInput as error:  # the workspace that is asked for
            raise MCPError(types.INVALID_PARAMS, str(error)) from None
        except WorkspaceGone as gone:
            if gone.reason in _OWN_DOING:
                return _result(_lost(gone), ok=False)
            raise _failure(_lost(gone), "workspace_gone", reason=gone.reason) from None
        except QuotaFull as full:
            retry = {"retry_after_s": full.retry_after_s}
            raise _failure(str(full), "quota_full", **retry) from None
        except (WorkspaceFault, JailLost) as fault:
            raise _failure(str(fault), "workspace_fault") from None
        pictures = [
            types.ImageContent(data=one.base64, mime_type=one.mime) for one in answer.pictures
        ]
        return _result(answer.text, *pictures, ok=answer.ok)

    async def _workspace(self, request: Request, options: SessionOptions) -> Workspace:
        owner = request.scope.get(KEY_NAME, "")
        named = request.scope.get(_WORKSPACE)
        if named is not None:
            return self._workspaces.find(named, owner=owner)
        session_id = request.headers[SESSION.decode()]
        return await self._sessions.workspace(session_id, owner=owner, spec=options.spec)


def _no_sessions(version: str) -> AsciiJson:
    """Tells a client of the MCP without sessions to begin one as older clients do."""
    supported = list(HANDSHAKE_PROTOCOL_VERSIONS)
    error = types.ErrorData(
        code=types.UNSUPPORTED_PROTOCOL_VERSION,
        message="Here every session has a workspace of its own: begin one with `initialize`, or "
        "open a workspace and use /v1/sandboxes/{id}/mcp",
        data={"supported": supported, "requested": version},
    )
    return AsciiJson({"jsonrpc": "2.0", "id": None, "error": error.model_dump()}, status_code=400)


def _lost(gone: WorkspaceGone) -> str:
    return (
        f"The workspace is gone ({gone.reason}), with its files and variables. "
        "The next call of this session begins with an empty one."
    )


def _result(text: str, *pictures: types.ImageContent, ok: bool) -> types.CallToolResult:
    content = [types.TextContent(text=text), *pictures]
    return types.CallToolResult(content=content, is_error=not ok)


def _failure(message: str, kind: str, **more: object) -> MCPError:
    """Nothing that the agent did: an error of the protocol, not an answer of a tool."""
    return MCPError(types.INTERNAL_ERROR, message, {"type": kind, **more})
