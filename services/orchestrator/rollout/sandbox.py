"""A sandbox for an environment: tools that run the model's code, for one episode.

A code-interpreter agent:

    from services.orchestrator.rollout.sandbox import sandbox

    async def rollout(client, task):
        messages = task.chat
        async with sandbox() as box:
            for _ in range(8):
                reply = await client.chat.completions.create(
                    model="policy", messages=messages, tools=box.tools
                )
                messages += await box.call(reply)
                if not reply.choices[0].message.tool_calls:
                    return reply.choices[0].message.content or ""
        return ""

An agent whose model writes calls as text makes them with `await box.use("python", {"code": said})`.
"""

import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from typing import Any

import httpx
from pydantic_core import to_jsonable_python

from services.http.api_key import key_header
from services.protocol.errors import InvalidInput
from services.protocol.reward.workspaces import (
    CallResult,
    ExecCall,
    OpenWorkspace,
    PythonCall,
    Status,
)
from services.workspaces.client import (
    RemoteWorkspace,
    SandboxService,
    WorkspaceFailed,
    WorkspaceOverLimit,
)
from services.workspaces.tools import TOOLS, ToolLimits, description, input_schema, use_tool

_DEFAULT = ("python", "bash", "read", "write")
_SLACK_S = 60.0  # for which a workspace outlives its episode, whose process may have died
_LONGEST_S = 86400.0
_READ_BYTES = 1 << 20
_service: ContextVar[SandboxService] = ContextVar("sandbox_service")


@contextmanager
def sandboxes_at(
    http: httpx.AsyncClient, url: str, *, api_key: str | None = None, timeout_s: float
) -> Iterator[None]:
    """Have `sandbox` open workspaces there. Episodes run inside it; tests of an environment may.

    Args:
        http: connections; they ask no proxy of the environment.
        url: of the router, without a path.
        api_key: that the service asks for.
        timeout_s: for how long a service that is away or full is asked again, seconds.
    """
    deadline = time.monotonic() + timeout_s
    here = SandboxService(http=http, url=url, headers=key_header(api_key), deadline=deadline)
    before = _service.set(here)
    try:
        yield
    finally:
        _service.reset(before)


@asynccontextmanager
async def sandbox(
    *, tools: Sequence[str] = _DEFAULT, limits: ToolLimits | None = None, **spec: Any
) -> AsyncIterator["Sandbox"]:
    """A workspace for this episode, closed at its end.

    Args:
        tools: what the model may use: of `python`, `bash`, `read`, `write` and `list`.
        limits: of each call of a tool.
        spec: fields of `OpenWorkspace`, such as `files={"data.csv": text}`.

    Raises:
        InvalidInput: one of them is not usable.
        WorkspaceFailed: no workspace can be had; the episode then fails by this reason.
    """
    if unknown := sorted(set(tools) - set(TOOLS)):
        raise InvalidInput("tools", unknown[0], f"Name some of {', '.join(TOOLS)}.")
    service = _service.get(None)
    if service is None:
        fix = "Only an episode of a run has one; elsewhere open it within sandboxes_at(...)."
        raise InvalidInput("sandbox", "(no service)", fix)
    left_s = min(max(1.0, service.deadline - time.monotonic() + _SLACK_S), _LONGEST_S)
    asked = OpenWorkspace.from_data({"total_s": left_s, "idle_s": left_s} | spec, source="sandbox")
    workspace = await RemoteWorkspace.open(service, asked)
    try:
        yield Sandbox(workspace, tuple(tools), limits or ToolLimits())
    finally:
        await workspace.close()


class Sandbox:
    """The workspace of an episode.

    What the model does wrong (a tool that does not exist, code that raises or takes too long, a
    file that is not there) is an answer to the model. What goes wrong around it raises
    `WorkspaceFailed`: leave it alone, and the episode fails by its reason, without a reward.

    Attributes:
        tools: for `client.chat.completions.create(tools=...)`.
        id: of the workspace.
        score: of the last `grade`; empty before.
    """

    def __init__(
        self, workspace: RemoteWorkspace, tools: tuple[str, ...], limits: ToolLimits
    ) -> None:
        self._workspace, self._names, self._limits = workspace, tools, limits
        self.id = workspace.id
        self.score: Mapping[str, Any] = {}
        self.tools: list[Any] = [
            {
                "type": "function",
                "function": {
                    "name": name,
                    "description": description(name),
                    "parameters": input_schema(name),
                },
            }
            for name in tools
        ]

    async def call(self, reply: Any) -> list[Any]:
        """Do what a chat completion asks for.

        Args:
            reply: of `client.chat.completions.create`.

        Returns:
            Messages to go on with: the model's own, and one for the answer to each of its calls.
        """
        said = reply.choices[0].message
        messages = [said.model_dump(exclude_none=True)]
        for one in said.tool_calls or ():
            asked = getattr(one, "function", None)
            name, arguments = (asked.name, asked.arguments) if asked else (one.type, None)
            text = await self.use(name, arguments)
            messages.append({"role": "tool", "tool_call_id": one.id, "content": text})
        return messages

    async def use(self, tool: str, arguments: str | Mapping[str, Any] | None = None) -> str:
        """One call of a tool, and its answer for the model: at most `limits.max_chars` and what
        says how it ended.

        Args:
            tool: its name, as the model wrote it.
            arguments: JSON as the model wrote it, or read already.
        """
        workspace, limits = self._workspace, self._limits
        return (await use_tool(workspace, tool, arguments, limits, offered=self._names)).text

    async def python(self, code: str) -> CallResult:
        """Run a cell of the model's in the interpreter, which keeps its variables."""
        limits = self._limits
        call = {"code": code, "wall_s": limits.wall_s, "cpu_s": limits.cpu_s}
        try:
            return await self._workspace.python(PythonCall.from_data(call, source="python"))
        except InvalidInput as error:
            return _not_run(error)

    async def bash(self, command: str, **how: Any) -> CallResult:
        """Run a bash command; `how` has fields of `ExecCall`, such as `wall_s=600`."""
        argv = ["bash", "-c", command]
        call = {"argv": argv, "wall_s": self._limits.wall_s, "cpu_s": self._limits.cpu_s} | how
        try:
            return await self._workspace.exec(ExecCall.from_data(call, source="bash"))
        except InvalidInput as error:
            return _not_run(error)

    async def read(self, path: str) -> str | None:
        """The text of a file; None if the model has left no such file, or one above 1 MiB."""
        try:
            content = await self._workspace.read(path, max_bytes=_READ_BYTES)
        except InvalidInput:
            return None
        return content.decode("utf-8", errors="replace")

    async def write(self, path: str, content: str | bytes) -> bool:
        """Write a file; False if what the model has left there does not let it be written."""
        data = content.encode() if isinstance(content, str) else content
        try:
            await self._workspace.write(path, data)
        except InvalidInput:
            return False
        return True

    async def grade(self, **how: Any) -> float:
        """The reward of what the workspace holds now; 0 if programs of the model filled it up.

        Args:
            how: fields of `GradeWorkspace`, such as `tests=[...]` and `policy="fraction"`.

        Raises:
            InvalidInput: it cannot be graded so.
            WorkspaceFailed: it could not be graded; no reward is known.
        """
        try:
            self.score = await self._workspace.grade(to_jsonable_python(how))
        except WorkspaceOverLimit as error:
            self.score = {"verdict": f"{error.reason}_limit", "reward": 0.0, "detail": str(error)}
        reward = self.score.get("reward")
        if not isinstance(reward, int | float):
            detail = f"{self.score.get('verdict')}: {self.score.get('detail')}"
            raise WorkspaceFailed("workspace_ungraded", detail)
        return float(reward)


def _not_run(error: InvalidInput) -> CallResult:
    """The result of what cannot be run: nothing that the model says may cost the episode."""
    limit: Status = "failed"
    if isinstance(error, WorkspaceOverLimit):
        limit = "disk_limit" if error.reason == "disk" else "memory_limit"
    return CallResult(status=limit, traceback=str(error))
