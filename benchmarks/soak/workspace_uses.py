"""What a session does with its workspace, and whether each call came back as it must.

A process that was killed may end a call as `failed` by SIGKILL, restart the interpreter, or lose
the workspace. It may never change what a call comes back with.
"""

import random
from collections.abc import Awaitable, Callable

from services.protocol.reward.workspaces import CallResult, ExecCall, PythonCall
from services.reward_service.workspaces.workspace import Workspace
from services.reward_service.workspaces.workspaces import Workspaces

Use = Callable[[Workspaces, Workspace, int], Awaitable[str]]
"""Of a service, a workspace and a number of its own: what is wrong, or an empty text."""

KILLED = -9
NUMBER_FILE = "number.txt"


async def program(service: Workspaces, workspace: Workspace, number: int) -> str:
    """A shell line that reads a file and counts."""
    done = await workspace.exec(ExecCall(shell=f"cat {NUMBER_FILE}; echo $(({number} * 2))"))
    return _unless_killed(done, done.stdout == f"{number}\n{number * 2}\n")


async def interpreter(service: Workspaces, workspace: Workspace, number: int) -> str:
    """A variable that a later cell reads."""
    first = await workspace.python(PythonCall(code=f"kept = {number}"))
    second = await workspace.python(PythonCall(code="kept + 1"))
    if second.result == str(number + 1):
        return ""
    said = first.interpreter_restarted or second.interpreter_restarted
    return "" if said and second.result is None else f"{first}, then {second}"


async def files(service: Workspaces, workspace: Workspace, number: int) -> str:
    """A file that is written, listed, read by both sides and removed."""
    content = random.Random(number).randbytes(4096)
    await workspace.write("folder/data", content)
    if await workspace.read("folder/data", max_bytes=8192) != content:
        return "a file reads otherwise than it was written"
    if [one.bytes for one in await workspace.list("folder")] != [4096]:
        return "a folder lists otherwise than it is"
    await workspace.remove("folder")
    return ""


async def flood(service: Workspaces, workspace: Workspace, number: int) -> str:
    """Output without an end."""
    done = await workspace.exec(ExecCall(shell="yes", output_kb=16))
    return _unless_killed(done, done.status == "output_limit")


async def sleeper(service: Workspaces, workspace: Workspace, number: int) -> str:
    """A program that waits for nothing."""
    done = await workspace.exec(ExecCall(shell="sleep 99", wall_s=0.2))
    return _unless_killed(done, done.status == "time_limit")


async def leftovers(service: Workspaces, workspace: Workspace, number: int) -> str:
    """Processes that would outlive their call."""
    done = await workspace.exec(ExecCall(shell="sleep 99 & sleep 99 & echo left"))
    return _unless_killed(done, done.stdout == "left\n")


async def forks(service: Workspaces, workspace: Workspace, number: int) -> str:
    """A workspace that begins as this one, with its files and variables."""
    first = await workspace.python(PythonCall(code=f"kept = {number}"))
    (forked,) = await service.fork(workspace, 1)
    try:
        files = await forked.read(NUMBER_FILE, max_bytes=64)
        cell = await forked.python(PythonCall(code="kept + 1"))
        same = files == f"{number}\n".encode() and cell.result == str(number + 1)
        said = first.interpreter_restarted or cell.interpreter_restarted or first.status != "ok"
        return "" if same or (said and cell.result is None) else f"{files!r}, {cell}"
    finally:
        await forked.close("closed")


USES: dict[str, tuple[Use, float]] = {
    "program": (program, 4.0),
    "interpreter": (interpreter, 4.0),
    "files": (files, 2.0),
    "flood": (flood, 0.5),
    "sleeper": (sleeper, 0.5),
    "leftovers": (leftovers, 1.0),
    "forks": (forks, 0.5),
}
"""By name, each with how often it is drawn."""


def _unless_killed(done: CallResult, right: bool) -> str:
    """A call that ends by SIGKILL says nothing else that is wrong."""
    return "" if right or (done.status, done.exit_code) == ("failed", KILLED) else str(done)
