"""The tools of a workspace as agents see them: what they are called, take and answer."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import Field

from services.protocol.errors import InvalidInput
from services.protocol.reward.workspaces import (
    Argument,
    CallResult,
    ExecCall,
    FileEntry,
    FilePath,
    Picture,
    PythonCall,
    Text,
)
from services.protocol.strict import StrictModel
from services.workspaces.tool_text import call_text, cut_middle, file_text, folder_text

_BYTES_PER_CHAR = 4  # of UTF-8, at most


class ToolWorkspace(Protocol):
    """The calls of a workspace that tools make, in its service or over HTTP."""

    async def python(self, call: PythonCall) -> CallResult:
        """Run a cell."""

    async def exec(self, call: ExecCall) -> CallResult:
        """Run a program."""

    async def read(self, path: str, *, max_bytes: int) -> bytes:
        """The bytes of a file, cut at `max_bytes`.

        Raises:
            InvalidInput: there is no such file.
        """

    async def write(self, path: str, content: bytes) -> None:
        """Write a file.

        Raises:
            InvalidInput: no such file can be written.
        """

    async def list(self, path: str) -> list[FileEntry]:
        """The entries of a folder.

        Raises:
            InvalidInput: there is no such folder.
        """


@dataclass(frozen=True, kw_only=True)
class ToolLimits:
    """What one call of a tool may take.

    Attributes:
        wall_s: seconds of a cell or a command.
        cpu_s: processor seconds of it.
        max_chars: of the text that the agent reads.
        max_read_bytes: of a file that it reads parts of.
    """

    wall_s: float = 30.0
    cpu_s: float = 30.0
    max_chars: int = 8000
    max_read_bytes: int = 1 << 20

    @property
    def output_kb(self) -> int:
        """Output beyond it ends a call: far more than is shown, since most of it is cut."""
        return min(max(64, 8 * self.max_chars * _BYTES_PER_CHAR // 1024), 65536)


@dataclass(frozen=True, kw_only=True)
class ToolAnswer:
    """What an agent gets for one call.

    Attributes:
        text: for the agent, at most `ToolLimits.max_chars` and a line.
        ok: whether it did what was asked.
        pictures: that a cell showed.
    """

    text: str
    ok: bool = True
    pictures: tuple[Picture, ...] = ()


class _Tool(StrictModel):
    """Arguments of a tool; its docstring is what agents read of it."""

    async def use(self, workspace: ToolWorkspace, limits: ToolLimits) -> ToolAnswer:
        """Do what the agent asks."""
        raise NotImplementedError


class PythonTool(_Tool):
    """Run Python code. Variables, imports and functions stay for later calls. The answer is what
    the code prints and the value of its last expression."""

    code: Text = Field(description="Python source, of any number of lines.")

    async def use(self, workspace: ToolWorkspace, limits: ToolLimits) -> ToolAnswer:
        """See `_Tool`."""
        call = PythonCall(
            code=self.code,
            wall_s=limits.wall_s,
            cpu_s=limits.cpu_s,
            output_kb=limits.output_kb,
        )
        return _answer(await workspace.python(call), limits)


class BashTool(_Tool):
    """Run a bash command in the workspace's folder. The answer is what it prints and its exit
    status. Files stay for later calls; processes end with the command."""

    command: Argument = Field(min_length=1, description="The command line; it may have many lines.")

    async def use(self, workspace: ToolWorkspace, limits: ToolLimits) -> ToolAnswer:
        """See `_Tool`."""
        call = ExecCall(
            argv=["bash", "-c", self.command],
            wall_s=limits.wall_s,
            cpu_s=limits.cpu_s,
            output_kb=limits.output_kb,
        )
        return _answer(await workspace.exec(call), limits)


class ReadTool(_Tool):
    """Read a text file of the workspace."""

    path: FilePath = Field(description="The file, relative to the workspace's folder.")
    first_line: int = Field(default=1, ge=1, description="The first line to show, from 1.")
    lines: int | None = Field(default=None, ge=1, description="How many lines; all without it.")

    async def use(self, workspace: ToolWorkspace, limits: ToolLimits) -> ToolAnswer:
        """See `_Tool`."""
        content = await workspace.read(self.path, max_bytes=limits.max_read_bytes)
        text = file_text(content, first_line=self.first_line, lines=self.lines)
        return ToolAnswer(text=cut_middle(text, limits.max_chars))


class WriteTool(_Tool):
    """Write a text file into the workspace. It replaces a file that is there, and makes the
    folders above it."""

    path: FilePath = Field(description="The file, relative to the workspace's folder.")
    content: Text = Field(description="The whole text of the file.")

    async def use(self, workspace: ToolWorkspace, limits: ToolLimits) -> ToolAnswer:
        """See `_Tool`."""
        content = self.content.encode()
        await workspace.write(self.path, content)
        return ToolAnswer(text=f"wrote {len(content)} bytes to {self.path}")


class ListTool(_Tool):
    """List the files of a folder of the workspace."""

    path: FilePath = Field(default=".", description="The folder; the workspace's own without it.")

    async def use(self, workspace: ToolWorkspace, limits: ToolLimits) -> ToolAnswer:
        """See `_Tool`."""
        text = folder_text(await workspace.list(self.path))
        return ToolAnswer(text=cut_middle(text, limits.max_chars))


TOOLS: Mapping[str, type[_Tool]] = {
    "python": PythonTool,
    "bash": BashTool,
    "read": ReadTool,
    "write": WriteTool,
    "list": ListTool,
}


def description(name: str) -> str:
    """What an agent reads of a tool, in one line."""
    return " ".join((TOOLS[name].__doc__ or "").split())


def input_schema(name: str) -> dict[str, Any]:
    """JSON schema of a tool's arguments."""
    schema = TOOLS[name].model_json_schema()
    properties = {
        field: {key: value for key, value in one.items() if key != "title"}
        for field, one in schema["properties"].items()
    }
    return {
        "type": "object",
        "properties": properties,
        "required": schema.get("required", []),
        "additionalProperties": False,
    }


async def use_tool(
    workspace: ToolWorkspace,
    name: str,
    arguments: str | Mapping[str, Any] | None,
    limits: ToolLimits,
    *,
    offered: tuple[str, ...] = tuple(TOOLS),
) -> ToolAnswer:
    """Make one call of an agent; its own mistakes are an answer, not an error.

    Args:
        workspace: where.
        name: of the tool, as the agent wrote it.
        arguments: as it wrote them, JSON or read already.
        limits: of the call.
        offered: tools that the agent may use.
    """
    try:
        if name not in offered:
            known = ", ".join(offered)
            raise InvalidInput("tool", name[:64], f"There is no such tool; there are: {known}.")
        tool = TOOLS[name].from_data(_read(arguments), source=name)
        return await tool.use(workspace, limits)
    except InvalidInput as error:
        return ToolAnswer(text=cut_middle(f"error: {error}", limits.max_chars), ok=False)


def _read(arguments: str | Mapping[str, Any] | None) -> Any:
    if not isinstance(arguments, str):
        return dict(arguments or {})
    try:
        return json.loads(arguments) if arguments.strip() else {}
    except (ValueError, RecursionError) as error:
        fix = f"They are a JSON object: {error}."
        raise InvalidInput("arguments", arguments[:200], fix) from None


def _answer(result: CallResult, limits: ToolLimits) -> ToolAnswer:
    return ToolAnswer(
        text=call_text(result, wall_s=limits.wall_s, max_chars=limits.max_chars),
        ok=result.status == "ok",
        pictures=tuple(result.pictures),
    )
