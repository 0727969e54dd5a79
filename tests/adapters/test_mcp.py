"""Tools of real MCP servers, which are processes of their own."""

import asyncio
import json
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn
from mcp import MCPError
from openai.types.chat import ChatCompletionMessage

from environments.mcp import mcp_tools
from services.protocol.errors import InvalidInput

SERVER = '''
import os
from mcp.server import MCPServer

server = MCPServer("sums")


@server.tool()
def times(a: int, b: int) -> int:
    """Multiply."""
    return a * b


@server.tool()
def fail() -> str:
    """Never works."""
    raise ValueError("Error executing tool fail")


@server.tool()
def long(n: int) -> str:
    """Many letters."""
    return "a" * n


@server.tool()
def die() -> str:
    """Ends the server."""
    os._exit(3)
'''


@pytest.fixture(params=["stdio", "http"])
async def server(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Any]:
    """What a tool is given: the command of a server, or the URL of one in this process."""
    if request.param == "stdio":
        (tmp_path / "sums.py").write_text(f'{SERVER}\nserver.run("stdio")\n')
        yield [sys.executable, str(tmp_path / "sums.py")]
        return
    found: dict[str, Any] = {}
    exec(SERVER, found)
    async with listening(found["server"].streamable_http_app()) as port:
        yield f"http://127.0.0.1:{port}/mcp"


@asynccontextmanager
async def listening(app: Any) -> AsyncIterator[int]:
    """The port of a server of this app, for as long as the context lasts."""
    host = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning", lifespan="on"))
    with socket.create_server(("127.0.0.1", 0)) as free:
        serving = asyncio.create_task(host.serve([free]))
        yield free.getsockname()[1]
        host.should_exit = True
        await serving


def reply(**calls: Any) -> Any:
    """A chat completion that makes these calls."""
    asked = [
        {"id": f"c{number}", "type": "function", "function": {"name": name, "arguments": given}}
        for number, (name, given) in enumerate(calls.items())
    ]
    message = ChatCompletionMessage.model_validate(
        {"role": "assistant", "content": None, "tool_calls": asked}
    )
    return SimpleNamespace(choices=[SimpleNamespace(message=message)])


async def test_a_models_calls_are_made_and_answered(server: Any) -> None:
    async with mcp_tools(server) as box:
        names = {tool["function"]["name"]: tool["function"] for tool in box.tools}
        assert names.keys() == {"times", "fail", "long", "die"}
        assert names["times"]["description"] == "Multiply."
        assert names["times"]["parameters"]["required"] == ["a", "b"]
        said, answer = await box.call(reply(times=json.dumps({"a": 6, "b": 7})))
    assert said["tool_calls"][0]["id"] == answer["tool_call_id"] == "c0"
    assert answer["content"] == "42"


MISTAKES = [
    ("divide", "{}", "There is no tool 'divide'; there are times, fail, long, die."),
    ("times", "{", "The arguments are no JSON"),
    ("times", "[1]", "The arguments must be a JSON object."),
    ("times", '{"a": 1}', "b"),
    ("fail", None, "Error executing tool fail"),
]


async def test_a_mistake_of_the_model_is_an_answer(server: Any) -> None:
    async with mcp_tools(server) as box:
        for tool, arguments, answer in MISTAKES:
            assert answer in await box.use(tool, arguments)
            assert await box.use("times", '{"a": 2, "b": 3}') == "6", "the server goes on"


async def test_a_long_answer_is_cut_in_the_middle(server: Any) -> None:
    async with mcp_tools(server, max_chars=100) as box:
        text = await box.use("long", '{"n": 1000}')
    assert text == f"{'a' * 50}\n... 900 characters ...\n{'a' * 50}"


async def test_a_server_that_dies_is_no_answer(tmp_path: Path) -> None:
    (tmp_path / "sums.py").write_text(f'{SERVER}\nserver.run("stdio")\n')
    with pytest.raises(MCPError, match="Connection closed"):
        async with mcp_tools([sys.executable, str(tmp_path / "sums.py")]) as box:
            await box.use("die")


async def test_a_server_by_url_that_is_gone_is_no_answer() -> None:
    found: dict[str, Any] = {}
    exec(SERVER, found)

    async def play() -> None:
        async with AsyncExitStack() as stack:
            app = found["server"].streamable_http_app()
            port = await stack.enter_async_context(listening(app))
            async with mcp_tools(f"http://127.0.0.1:{port}/mcp") as box:
                assert await box.use("times", '{"a": 2, "b": 3}') == "6"
                await stack.aclose()
                await box.use("times", '{"a": 2, "b": 3}')

    with pytest.raises(Exception, match="onnect"):
        await play()


async def test_a_url_that_nobody_answers_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(Exception, match=r"onnect"):
        async with mcp_tools(f"http://127.0.0.1:{port}/mcp"):
            pass


async def test_two_servers_with_one_name_are_refused(server: Any) -> None:
    with pytest.raises(InvalidInput, match=r"times.*Two servers"):
        async with mcp_tools(server, server):
            pass


async def test_without_the_package_it_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(InvalidInput, match="pip install 'millrace"):
        async with mcp_tools("http://127.0.0.1:1/mcp"):
            pass
