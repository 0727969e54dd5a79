"""MCP sessions where several replicas stand behind one address."""

import json
import sys
from typing import Any

import httpx
import pytest

from services.reward_service.workspace_api.peer_listener import PREFIX
from tests.reward_service.workspace_api.conftest import cluster, opened, until

ACCEPT = {"accept": "application/json, text/event-stream", "x-key": "ann"}
BEGIN = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "clientInfo": {"name": "t", "version": "1"},
}


async def asked(
    http: httpx.AsyncClient, method: str, params: Any, *, path: str = "/mcp", session: str = ""
) -> httpx.Response:
    headers = ACCEPT | ({"mcp-session-id": session} if session else {})
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return await http.post(f"{PREFIX}{path}", json=body, headers=headers)


def answered(response: httpx.Response) -> Any:
    """The result in an event of the answer."""
    assert response.status_code == 200, response.text
    line = next(line for line in response.text.splitlines() if line.startswith("data: {"))
    return json.loads(line.removeprefix("data: "))["result"]


async def said(http: httpx.AsyncClient, session: str, code: str) -> str:
    params = {"name": "python", "arguments": {"code": code}}
    answer = answered(await asked(http, "tools/call", params, session=session))
    return answer["content"][0]["text"]


async def test_a_session_reaches_its_workspace_through_every_replica() -> None:
    async with cluster() as made:
        first, second = await made.start(), await made.start()
        begun = await asked(first.http, "initialize", BEGIN)
        session = begun.headers["mcp-session-id"]
        assert session.startswith(f"{first.name}-")
        assert await said(second.http, session, "x = 6 * 7") == "(no output)"
        assert await said(first.http, session, "x") == "42"
        assert len(first.workspaces.of("ann")) == 1
        assert not second.workspaces.of("ann")
        ended = await second.http.delete(
            f"{PREFIX}/mcp", headers=ACCEPT | {"mcp-session-id": session}
        )
        assert ended.status_code == 200
        await until(lambda: not first.workspaces.of("ann"))


async def test_a_session_whose_replica_is_gone_is_said_to_be_lost() -> None:
    async with cluster() as made:
        first, second = await made.start(), await made.start()
        session = (await asked(first.http, "initialize", BEGIN)).headers["mcp-session-id"]
        await said(first.http, session, "1")
        await first.die()
        made.running.discard(first.name)
        lost = await asked(second.http, "tools/list", {}, session=session)
        assert (lost.status_code, lost.json()["error"]["reason"]) == (410, "lost")


async def test_the_tools_of_an_open_workspace_are_found_from_every_replica() -> None:
    async with cluster() as made:
        first, second = await made.start(), await made.start()
        first.http.headers["x-key"] = "ann"
        workspace = (await opened(first.http, files={"a": "1"})).removeprefix(PREFIX)
        path = f"{workspace}/mcp"
        session = (await asked(second.http, "initialize", BEGIN, path=path)).headers[
            "mcp-session-id"
        ]
        params = {"name": "read", "arguments": {"path": "a"}}
        answer = await asked(second.http, "tools/call", params, path=path, session=session)
        assert answered(answer)["content"][0]["text"] == "1"
        for key in ("bob", ""):
            first.http.headers["x-key"] = key
            unknown = await first.http.post(f"{PREFIX}{path}", json={}, headers={"x-key": key})
            assert unknown.status_code == 404


async def test_without_its_package_the_address_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    name = "services.reward_service.workspace_api.mcp_server"
    monkeypatch.delitem(sys.modules, name, raising=False)
    async with cluster() as made:
        replica = await made.start()
        answer = await asked(replica.http, "initialize", BEGIN)
        assert answer.status_code == 501
        assert "millrace[mcp]" in answer.json()["error"]["message"]
        assert (await replica.http.post(PREFIX, json={})).status_code == 201
