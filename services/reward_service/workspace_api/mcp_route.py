"""Where the MCP server of workspaces is, or what to install to have it."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from services.http.error_answer import error_answer
from services.reward_service.workspaces.config import WorkspacesConfig
from services.reward_service.workspaces.workspaces import Workspaces


class McpApp(Protocol):
    """An application that runs for a while."""

    def running(self) -> AbstractAsyncContextManager[None]:
        """Serve requests during the block."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""


class _NotInstalled:
    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        yield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        fix = "Install millrace[mcp] where the replica runs."
        await error_answer(501, "mcp", "(not installed)", fix)(scope, receive, send)


def mcp_app(workspaces: Workspaces, config: WorkspacesConfig, *, replica: str) -> McpApp:
    """The MCP server of a replica; without its package, an application that says so."""
    try:
        from services.reward_service.workspace_api.mcp_server import McpServer
    except ModuleNotFoundError as missing:
        if (missing.name or "").partition(".")[0] not in ("mcp", "mcp_types"):
            raise
        return _NotInstalled()
    return McpServer(workspaces, config, replica=replica)


def mcp_routes(app: McpApp) -> list[Route]:
    """The two addresses, which come before all others of the application."""
    return [Route("/mcp", app), Route("/{workspace_id}/mcp", app)]
