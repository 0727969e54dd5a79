"""Tools of real MCP servers, which are processes of their own."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from openai.types.chat import ChatCompletionMessage

from environments.mcp import mcp_tools
from services.protocol.errors import InvalidInput

SERVER = '''
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


server.run("stdio")
'''


@pytest.fixture
def server(tmp_path: Path) -> list[str]:
    (tmp_path / "sums.py").write_text(SERVER)
    return [sys.executable, str(tmp_path / "sums.py")]


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


async def test_a_models_calls_are_made_and_answered(server: list[str]) -> None:
    async with mcp_tools(server) as box:
        names = {tool["function"]["name"]: tool["function"] for tool in box.tools}
        assert names.keys() == {"times", "fail", "long"}
        assert names["times"]["description"] == "Multiply."
        assert names["times"]["parameters"]["required"] == ["a", "b"]
        said, answer = await box.call(reply(times=json.dumps({"a": 6, "b": 7})))
    assert said["tool_calls"][0]["id"] == answer["tool_call_id"] == "c0"
    assert answer["content"] == "42"


MISTAKES = [
    ("divide", "{}", "There is no tool 'divide'; there are times, fail, long."),
    ("times", "{", "The arguments are no JSON"),
    ("times", "[1]", "The arguments must be a JSON object."),
    ("times", '{"a": 1}', "b"),
    ("fail", None, "Error executing tool fail"),
]


async def test_a_mistake_of_the_model_is_an_answer(server: list[str]) -> None:
    async with mcp_tools(server) as box:
        for tool, arguments, answer in MISTAKES:
            assert answer in await box.use(tool, arguments)
            assert await box.use("times", '{"a": 2, "b": 3}') == "6", "the server goes on"


async def test_a_long_answer_is_cut_in_the_middle(server: list[str]) -> None:
    async with mcp_tools(server, max_chars=100) as box:
        text = await box.use("long", '{"n": 1000}')
    assert text == f"{'a' * 50}\n... 900 characters ...\n{'a' * 50}"


async def test_two_servers_with_one_name_are_refused(server: list[str]) -> None:
    with pytest.raises(InvalidInput, match=r"times.*Two servers"):
        async with mcp_tools(server, server):
            pass


async def test_without_the_package_it_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(InvalidInput, match="pip install 'millrace"):
        async with mcp_tools("http://127.0.0.1:1/mcp"):
            pass
