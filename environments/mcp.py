"""Tools of MCP servers, for an environment of one's own.

from environments.mcp import mcp_tools

async def rollout(client, task):
    messages = task.chat
    async with mcp_tools("http://127.0.0.1:9000/mcp") as box:
        for _ in range(8):
            reply = await client.chat.completions.create(
                model="policy", messages=messages, tools=box.tools
            )
            messages += await box.call(reply)
            if not reply.choices[0].message.tool_calls:
                return reply.choices[0].message.content or ""
    return ""
"""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from importlib import import_module
from typing import Any

from services.protocol.errors import InvalidInput

_CALL_S, _MAX_CHARS = 60.0, 8000
_CLOSED = -32000  # CONNECTION_CLOSED of `mcp_types`, by which a client says that its server is gone


@asynccontextmanager
async def mcp_tools(
    *servers: str | Sequence[str], call_s: float = _CALL_S, max_chars: int = _MAX_CHARS
) -> AsyncIterator["McpTools"]:
    """The tools of these servers, which are left at the end.

    Args:
        servers: each the URL of one that speaks streamable HTTP, or the command of one that speaks
            over its standard input and output.
        call_s: longest call of a tool, seconds.
        max_chars: of an answer; from a longer one the middle is cut.

    Raises:
        InvalidInput: the package `mcp` is not there, or two servers have a tool of one name.
        MCPError: a server cannot be used; the episode fails.
    """
    try:
        library = import_module("mcp")
    except ImportError:
        fix = "`pip install 'millrace[mcp]'`."
        raise InvalidInput("mcp_tools", str(servers), fix) from None
    try:
        async with AsyncExitStack() as open_servers:
            found: dict[str, tuple[Any, Any]] = {}
            for server in servers:
                known = library.Client(_place(library, server), read_timeout_seconds=call_s)
                client = await open_servers.enter_async_context(known)
                for tool in (await client.list_tools()).tools:
                    if tool.name in found:
                        raise InvalidInput("mcp_tools", tool.name, "Two servers have such a tool.")
                    found[tool.name] = client, tool
            yield McpTools(found, library.MCPError, max_chars)
    except BaseExceptionGroup as group:
        # The clients' task groups wrap whatever happens between them.
        raise _first(group) from None


def _first(error: BaseException) -> BaseException:
    return _first(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


def _place(library: Any, server: str | Sequence[str]) -> Any:
    if isinstance(server, str):
        return server
    command, *arguments = server
    return library.StdioServerParameters(command=command, args=arguments)


class McpTools:
    """The tools of some servers. A mistake of the model is an answer to the model.

    Attributes:
        tools: for `client.chat.completions.create(tools=...)`.
    """

    def __init__(
        self, found: dict[str, tuple[Any, Any]], error: type[Exception], max_chars: int
    ) -> None:
        self._found, self._error, self._max_chars = found, error, max_chars
        self.tools: list[Any] = [
            {
                "type": "function",
                "function": {
                    "name": name,
                    "description": tool.description or name,
                    "parameters": tool.input_schema,
                },
            }
            for name, (_, tool) in found.items()
        ]

    async def call(self, reply: Any) -> list[Any]:
        """Messages to go on with: the model's own, and one for the answer to each of its calls."""
        said = reply.choices[0].message
        messages = [said.model_dump(exclude_none=True)]
        for one in said.tool_calls or ():
            asked = getattr(one, "function", None)
            name, arguments = (asked.name, asked.arguments) if asked else (one.type, None)
            text = await self.use(name, arguments)
            messages.append({"role": "tool", "tool_call_id": one.id, "content": text})
        return messages

    async def use(self, tool: str, arguments: str | None = None) -> str:
        """One call, and its answer for the model.

        Args:
            tool: its name, as the model wrote it.
            arguments: JSON as the model wrote it.

        Raises:
            MCPError: the server is gone; the episode fails.
        """
        if tool not in self._found:
            return f"There is no tool {tool!r}; there are {', '.join(self._found)}."
        try:
            given = json.loads(arguments or "{}")
        except ValueError as error:
            return f"The arguments are no JSON: {error}."
        if not isinstance(given, dict):
            return "The arguments must be a JSON object."
        client, _ = self._found[tool]
        try:
            done = await client.call_tool(tool, given)
        except self._error as error:
            if getattr(error, "code", None) == _CLOSED:
                raise
            return f"It failed: {error}"
        text = "\n".join(getattr(part, "text", f"({part.type})") for part in done.content)
        return _cut(text, self._max_chars)


def _cut(text: str, max_chars: int) -> str:
    if len(text) <= max_chars:
        return text
    half = max_chars // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters ...\n{text[-half:]}"
