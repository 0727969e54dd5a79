"""Attacks on the agent and the kept interpreter: the workspace answers after each as before."""

import pytest

from services.protocol.reward.workspaces import ExecCall, PythonCall
from services.reward_service.workspaces.errors import WorkspaceGone
from services.reward_service.workspaces.workspace import Workspace
from tests.redteam.workspaces.conftest import Open
from tests.redteam.workspaces.on_the_agent import FORGERIES, SIGNALS

pytestmark = [
    pytest.mark.usefixtures("nothing_grows"),
    pytest.mark.asyncio(loop_scope="session"),
]
ATTACKS = {**SIGNALS, **FORGERIES}


async def test_a_program_has_its_three_descriptors_and_no_other(new_workspace: Open) -> None:
    look = "import os\nprint([fd for fd in range(4096) if os.path.exists(f'/proc/self/fd/{fd}')])"
    count = "import fcntl\ndef open_(fd):\n    try: return fcntl.fcntl(fd, 1) >= 0\n"
    count += "    except OSError: return False\nprint([fd for fd in range(4096) if open_(fd)])"
    workspace = await new_workspace()
    await workspace.python(PythonCall(code="1"))
    for code in (look, count):
        done = await workspace.exec(ExecCall(argv=["python3", "-c", code]))
        assert done.stdout in ("[0, 1, 2]\n", "[]\n"), done


async def test_after_every_cell_the_same_workspace_answers_and_is_the_same(
    new_workspace: Open,
) -> None:
    attacked, neighbour = await new_workspace(), await new_workspace()
    await attacked.write("kept.txt", b"kept")
    surprises = []
    for name, code in ATTACKS.items():
        try:
            await attacked.python(PythonCall(code=code, wall_s=3, cpu_s=2, output_kb=16))
            surprises += await _wrong(attacked, name)
        except WorkspaceGone as gone:
            surprises.append(f"{name}: the workspace is gone: {gone}")
            attacked = await new_workspace()
            await attacked.write("kept.txt", b"kept")
    assert surprises == []
    assert await _wrong(neighbour, "nothing", kept=False) == []


async def test_after_every_program_the_same_workspace_answers_and_is_the_same(
    new_workspace: Open,
) -> None:
    attacked, neighbour = await new_workspace(), await new_workspace()
    await attacked.write("kept.txt", b"kept")
    surprises = []
    for name, code in ATTACKS.items():
        argv = ["python3", "-c", code]
        try:
            await attacked.exec(ExecCall(argv=argv, wall_s=3, cpu_s=2, output_kb=16))
            surprises += await _wrong(attacked, name)
        except WorkspaceGone as gone:
            surprises.append(f"{name}: the workspace is gone: {gone}")
            attacked = await new_workspace()
            await attacked.write("kept.txt", b"kept")
        except ValueError:
            assert "\0" in code
    assert surprises == []
    assert await _wrong(neighbour, "nothing", kept=False) == []


async def test_what_a_cell_leaves_behind_says_nothing_in_later_calls(new_workspace: Open) -> None:
    workspace = await new_workspace()
    for name in ("a thread that stays", "a child that answers too", "an alarm between calls"):
        await workspace.python(PythonCall(code=FORGERIES[name], restart=True))
        for number in range(5):
            done = await workspace.exec(ExecCall(shell=f"echo {number}"))
            assert (done.status, done.stdout) == ("ok", f"{number}\n"), name
            cell = await workspace.python(PythonCall(code=str(number)))
            if not cell.interpreter_restarted:
                assert cell.result == str(number), (name, cell)


async def _wrong(workspace: Workspace, after: str, *, kept: bool = True) -> list[str]:
    """What is not as it should be: a program, a new interpreter's cells, and files."""
    found = []
    done = await workspace.exec(ExecCall(shell="echo $((6 * 7))"))
    if (done.status, done.stdout) != ("ok", "42\n"):
        found.append(f"{after}: a program: {done}")
    for code, result in (("x = 6", None), ("x * 7", "42")):
        cell = await workspace.python(PythonCall(code=code, restart=result is None))
        if (cell.status, cell.result) != ("ok", result):
            found.append(f"{after}: {code}: {cell}")
    if kept and await workspace.read("kept.txt", max_bytes=64) != b"kept":
        found.append(f"{after}: its file has changed")
    return found
