"""Programs of a real workspace and the addresses that they may reach."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from services.protocol.errors import InvalidInput
from services.protocol.reward.workspaces import ExecCall, OpenWorkspace, PythonCall
from services.reward_service.workspaces.config import WorkspacesConfig
from services.reward_service.workspaces.workspace import Workspace
from services.reward_service.workspaces.workspaces import Workspaces
from tests.reward_service.workspaces.proxy_world import Server, listening

HELLO = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"
FETCH = """
import os, urllib.request
if {proxied}:  # the servers of these tests are on loopback, where programs go directly
    os.environ.pop("no_proxy", None), os.environ.pop("NO_PROXY", None)
try:
    print(urllib.request.urlopen({url!r}, timeout=60).read())
except Exception as error:
    print(type(error).__name__, error)
"""


@asynccontextmanager
async def workspaces(**config: Any) -> AsyncIterator[Workspaces]:
    held = Workspaces(WorkspacesConfig(shared_user=True, **config))
    await held.start()
    try:
        yield held
    finally:
        await held.aclose()


async def fetched(workspace: Workspace, place: str, *, proxied: bool = True) -> str:
    return await printed(workspace, FETCH.format(url=f"http://{place}/", proxied=proxied))


async def printed(workspace: Workspace, code: str) -> str:
    return (await workspace.python(PythonCall(code=code))).stdout


async def test_a_program_reaches_what_its_workspace_was_given_and_nothing_else() -> None:
    async with listening(Server(HELLO)) as server, listening(Server(HELLO)) as other:
        given, not_given = f"127.0.0.1:{server.port}", f"127.0.0.1:{other.port}"
        async with workspaces(network=[given, not_given], require_tier="A") as held:
            workspace = await held.open(OpenWorkspace(network=[given]), owner="")
            # Loopback in the jail is the jail's own.
            assert "Connection refused" in await fetched(workspace, given, proxied=False)
            assert await fetched(workspace, given) == "b'hello'\n"
            assert "403" in await fetched(workspace, not_given)
        assert len(server.got) == 1
        assert not other.got


async def test_programs_of_a_shell_find_the_proxy_and_are_told_why_it_refuses() -> None:
    async with workspaces(network=["a.example:80"], require_tier="A") as held:
        workspace = await held.open(OpenWorkspace(network=["a.example:80"]), owner="")
        shell = ExecCall(shell="echo $http_proxy $https_proxy $NO_PROXY")
        shown = (await workspace.exec(shell)).stdout.split()
        assert shown == ["http://127.0.0.1:3128"] * 2 + ["localhost,127.0.0.1,::1"]
        assert "403" in await fetched(workspace, "b.example", proxied=False)


async def test_a_workspace_without_network_has_no_proxy_and_no_socket() -> None:
    async with workspaces(network=["a.example:80"]) as held:
        workspace = await held.open(OpenWorkspace(), owner="")
        assert (await workspace.exec(ExecCall(shell="echo $http_proxy"))).stdout == "\n"
        code = (
            "import socket\ntry:\n    socket.socket()\nexcept OSError as e:\n    print(e.strerror)"
        )
        assert await printed(workspace, code) != ""


@pytest.mark.parametrize("asked", ["b.example:80", "a.example:81", "*.a.example:80", "a.example"])
async def test_what_the_operator_does_not_allow_is_refused_by_name(asked: str) -> None:
    async with workspaces(network=["a.example:80"]) as held:
        with pytest.raises(InvalidInput, match="network"):
            await held.open(OpenWorkspace(network=[asked]), owner="")


async def test_without_namespaces_no_workspace_has_a_network() -> None:
    async with workspaces(network=["a.example:80"], use_bubblewrap=False) as held:
        with pytest.raises(InvalidInput, match="namespaces"):
            await held.open(OpenWorkspace(network=["a.example:80"]), owner="")


def test_a_pattern_of_the_operator_that_cannot_be_read_stops_the_service() -> None:
    with pytest.raises(InvalidInput, match=r"network\.0"):
        Workspaces(WorkspacesConfig(network=["everything"]))


async def test_the_end_of_a_workspace_is_the_end_of_its_connections() -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    class Quiet(Server):
        async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            begun.set()
            await reader.read()
            ended.set()
            writer.close()

    async with listening(Quiet(b"")) as server:
        given = f"127.0.0.1:{server.port}"
        async with workspaces(network=[given], require_tier="A") as held, asyncio.timeout(300):
            workspace = await held.open(OpenWorkspace(network=[given]), owner="")
            calling = asyncio.create_task(fetched(workspace, given))
            await begun.wait()
            await workspace.close("closed")
            await ended.wait()
            await asyncio.gather(calling, return_exceptions=True)
