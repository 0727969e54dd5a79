"""Workspaces through MCP's own client, over real HTTP, with real jails."""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest
import uvicorn
from mcp import Client, MCPError
from mcp.client.streamable_http import streamable_http_client
from starlette.applications import Starlette
from starlette.types import ASGIApp, Receive, Scope, Send

from services.access.access_control import KEY_NAME
from services.protocol.reward.workspaces import OpenWorkspace
from services.reward_service.workspace_api.mcp_route import mcp_routes
from services.reward_service.workspace_api.mcp_server import McpServer
from services.reward_service.workspaces.config import WorkspacesConfig
from services.reward_service.workspaces.workspaces import Workspaces

LONG_S = 120.0


class Place:
    """A server of MCP and its workspaces."""

    def __init__(self, url: str, workspaces: Workspaces) -> None:
        self.url, self.workspaces = url, workspaces

    @asynccontextmanager
    async def client(
        self, path: str = "/mcp", *, owner: str = "ann", mode: Any = "auto"
    ) -> AsyncIterator[Client]:
        async with httpx2.AsyncClient(headers={"x-owner": owner}, timeout=LONG_S) as http:
            transport = streamable_http_client(self.url + path, http_client=http)
            async with Client(transport, mode=mode) as client:
                yield client

    async def closed(self) -> None:
        """Wait until no workspace is open."""
        left = self.workspaces._registry.all()
        ends = [asyncio.Event() for _ in left]
        for workspace, end in zip(left, ends, strict=True):
            workspace.when_ended(lambda _, end=end: end.set())
        async with asyncio.timeout(LONG_S):
            await asyncio.gather(*(end.wait() for end in ends))
        assert not self.workspaces._registry.all()


class Owners:
    """Stands in for the keys of the application."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope[KEY_NAME] = dict(scope["headers"]).get(b"x-owner", b"").decode()
        await self._app(scope, receive, send)


@asynccontextmanager
async def place(**config: Any) -> AsyncIterator[Place]:
    settings = WorkspacesConfig(shared_user=True, **config)
    workspaces = Workspaces(settings)
    await workspaces.start()
    server = McpServer(workspaces, settings, replica="r1")
    app = Starlette(routes=mcp_routes(server))
    app.add_middleware(Owners)
    http = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, lifespan="off"))
    http.config.load()
    http.lifespan = http.config.lifespan_class(http.config)
    async with server.running():
        await http.startup()
        port = http.servers[0].sockets[0].getsockname()[1]
        serving = asyncio.create_task(http.main_loop())
        try:
            yield Place(f"http://127.0.0.1:{port}", workspaces)
        finally:
            http.should_exit = True
            await serving
            await http.shutdown()
    await workspaces.aclose()


async def said(client: Client, tool: str, **arguments: Any) -> str:
    answer = await client.call_tool(tool, arguments)
    return "\n".join(part.text for part in answer.content if part.type == "text")


async def test_a_session_is_a_workspace_from_its_first_call_to_its_end() -> None:
    async with place() as here:
        async with here.client() as client:
            tools = await client.list_tools()
            assert [tool.name for tool in tools.tools] == [
                "python",
                "bash",
                "read",
                "write",
                "list",
            ]
            assert not here.workspaces.of("ann"), "nothing is used yet"
            assert await said(client, "python", code="x = 6 * 7\nx") == "42"
            assert await said(client, "python", code="print(x + 1)") == "43"
            assert (
                await said(client, "write", path="a.txt", content="one\n")
                == "wrote 4 bytes to a.txt"
            )
            assert await said(client, "bash", command="cat a.txt; [[ 1 == 1 ]] && exit 3") == (
                "one\n[exit status 3]"
            )
            assert await said(client, "read", path="a.txt") == "one\n"
            assert "a.txt" in await said(client, "list")
            assert len(here.workspaces.of("ann")) == 1
            async with here.client() as other:
                assert "NameError" in await said(other, "python", code="x")
                assert len(here.workspaces.of("ann")) == 2
        await here.closed()


async def test_calls_of_one_session_at_once_open_one_workspace() -> None:
    async with place() as here, here.client() as client:
        texts = await asyncio.gather(*(said(client, "bash", command="echo hi") for _ in range(8)))
        assert texts == ["hi"] * 8
        assert len(here.workspaces.of("ann")) == 1


async def test_a_mistake_of_the_agent_is_an_answer_marked_as_an_error() -> None:
    async with place() as here:
        for tool, arguments, part in [
            ("python", {"code": "1 / 0"}, "ZeroDivisionError"),
            ("python", {"cod": "1"}, "the nearest is code"),
            ("read", {"path": "../etc/passwd"}, "stays in the workspace"),
            ("read", {"path": "nothing.txt"}, "nothing.txt"),
            ("bash", {"command": "sleep 60"}, "time_limit"),
        ]:
            path = "/mcp" if part != "time_limit" else "/mcp?wall_s=0.5"
            async with here.client(path) as one:
                answer = await one.call_tool(tool, arguments)
            assert answer.is_error, tool
            assert part in answer.content[0].text


async def test_pictures_are_pictures() -> None:
    code = "class P:\n    def _repr_png_(self): return b'\\x89PNG'\nP()"
    async with place() as here, here.client() as client:
        answer = await client.call_tool("python", {"code": code})
        (picture,) = [part for part in answer.content if part.type == "image"]
        assert picture.mime_type == "image/png"


async def test_a_url_says_what_the_workspace_may_take() -> None:
    async with place(max_memory_mb=512) as here:
        async with here.client("/mcp?memory_mb=128&disk_mb=7&max_chars=100") as client:
            text = await said(client, "python", code="print('x' * 1000)")
            assert "900 characters are not shown" in text
            (opened,) = here.workspaces.of("ann")
            assert (opened.spec.memory_mb, opened.spec.disk_mb) == (128, 7)
        async with here.client("/mcp?memory_mb=1024") as client:
            with pytest.raises(MCPError, match="memory_mb"):
                await client.call_tool("python", {"code": "1"})
        async with here.client("/mcp?network=example.com:80") as client:
            with pytest.raises(MCPError, match="network"):
                await client.call_tool("python", {"code": "1"})
        async with httpx.AsyncClient(trust_env=False) as http:
            wrong = ("memory=1", "memory_mb=x", "files=a", "wall_s=-", "wall_s=9e9", "max_chars=0")
            for query in wrong:
                answer = await http.post(f"{here.url}/mcp?{query}", json={})
                assert answer.status_code == 400, query
                assert query.partition("=")[0] in answer.json()["error"]["message"]


async def test_a_workspace_that_is_gone_is_said_to_be_and_the_next_call_has_another() -> None:
    async with place() as here, here.client() as client:
        await said(client, "python", code="x = 1")
        (first,) = here.workspaces.of("ann")
        await first.close("idle")
        with pytest.raises(MCPError, match=r"gone \(idle\)") as caught:
            await client.call_tool("python", {"code": "x"})
        assert caught.value.data == {"type": "workspace_gone", "reason": "idle"}
        assert "NameError" in await said(client, "python", code="x")


async def test_a_call_that_the_client_gives_up_is_ended_and_the_session_goes_on() -> None:
    async with place() as here, here.client("/mcp?wall_s=600&cpu_s=600") as client:
        await said(client, "bash", command="echo begun > a")
        slow = asyncio.create_task(client.call_tool("bash", {"command": "echo 1 > b; sleep 600"}))
        (workspace,) = here.workspaces.of("ann")
        async with asyncio.timeout(LONG_S):
            while workspace.calls < 2:
                await asyncio.wait([slow], timeout=0.01)
            slow.cancel()
            await asyncio.gather(slow, return_exceptions=True)
            assert await said(client, "bash", command="cat a") == "begun"


async def test_quotas_are_those_of_the_http_api() -> None:
    async with place(per_key=1) as here, here.client() as client, here.client() as second:
        await said(client, "python", code="1")
        with pytest.raises(MCPError) as caught:
            await second.call_tool("python", {"code": "1"})
        assert caught.value.data["type"] == "quota_full"
        async with here.client(owner="bob") as other:
            assert await said(other, "python", code="1") == "1"


async def test_a_body_is_bounded_in_bytes_and_in_time() -> None:
    async with place(max_request_mb=1, request_body_s=0.2) as here:
        async with httpx.AsyncClient(trust_env=False) as http:
            large = await http.post(f"{here.url}/mcp", content=b" " * (2 << 20))
            assert large.status_code == 413
        host, _, port = here.url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /mcp HTTP/1.1\r\nhost: here\r\ncontent-length: 9\r\n\r\n{")
        async with asyncio.timeout(LONG_S):
            assert (await reader.readline()).split()[1] == b"408"
        writer.close()


async def test_a_session_of_another_key_is_unknown() -> None:
    async with place() as here, here.client() as client:
        await said(client, "python", code="x = 1")
        async with httpx.AsyncClient(trust_env=False) as http:
            begin = {
                "jsonrpc": "2.0",
                "id": 1,
                "method": "initialize",
                "params": {
                    "protocolVersion": "2025-06-18",
                    "capabilities": {},
                    "clientInfo": {"name": "t", "version": "1"},
                },
            }
            accept = {"accept": "application/json, text/event-stream"}
            headers = {**accept, "x-owner": "ann"}
            started = await http.post(f"{here.url}/mcp", json=begin, headers=headers)
            session = started.headers["mcp-session-id"]
            assert re.fullmatch(r"r1-[0-9a-f]{32}", session), "any replica can tell whose it is"
            listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
            for owner, status in (("ann", 200), ("bob", 404), ("", 404)):
                headers = {**accept, "x-owner": owner, "mcp-session-id": session}
                answer = await http.post(f"{here.url}/mcp", json=listing, headers=headers)
                assert answer.status_code == status, owner
                gone = await http.delete(f"{here.url}/mcp", headers=headers | {"x-owner": "eve"})
                assert gone.status_code == 404
            refused = await http.get(f"{here.url}/mcp", headers=headers)
            assert refused.status_code == 405


@pytest.mark.parametrize("mode", ["auto", "legacy", "2026-07-28"])
async def test_a_workspace_that_is_open_has_an_address_of_its_own(mode: str) -> None:
    async with place() as here:
        workspace = await here.workspaces.open(OpenWorkspace(files={"a": "1"}), owner="ann")
        async with here.client(f"/{workspace.id}/mcp", mode=mode) as client:
            assert await said(client, "bash", command="cat a; echo 2 > b") == "1"
        assert await workspace.read("b", max_bytes=9) == b"2\n", "it stays open"


async def test_a_client_of_the_mcp_without_sessions_is_told_to_begin_one() -> None:
    async with place() as here:
        with pytest.raises(BaseException) as caught:
            async with here.client(mode="2026-07-28") as client:
                await client.call_tool("python", {"code": "1"})
        assert "session" in repr(caught.value)


async def test_the_lines_of_the_guide_run() -> None:
    page = Path(__file__).parents[3] / "docs" / "sandboxes-tools.md"
    (block,) = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    scope: dict[str, Any] = {}
    exec(block, scope)
    async with place() as here:
        scope["URL"] = scope["URL"].replace("http://127.0.0.1:8000/v1/sandboxes", here.url)
        assert await scope["main"]() == "42"
