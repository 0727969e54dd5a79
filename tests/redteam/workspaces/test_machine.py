"""Attacks on kernel, files and other processes, from a workspace: nothing gets out."""

import platform

import pytest

from services.protocol.reward.workspaces import ExecCall, PythonCall
from services.reward_service.workspaces.workspace import Workspace
from tests.redteam.attack import CANARIES
from tests.redteam.on_the_machine import FILES, SYSTEM_CALLS
from tests.redteam.workspaces.attacks import ALLOWED, GOT_THROUGH, ON_THE_MACHINE, Tried, does
from tests.redteam.workspaces.conftest import PATIENCE_S, Open
from tests.redteam.workspaces.on_the_agent import REACHES

pytestmark = [
    pytest.mark.usefixtures("nothing_grows"),
    pytest.mark.asyncio(loop_scope="session"),
]
ATTACKS = ON_THE_MACHINE | REACHES if platform.machine() == "x86_64" else REACHES


async def test_no_attack_of_a_cell_gets_through(new_workspace: Open) -> None:
    workspace = await new_workspace()
    tried = [await _as_a_cell(workspace, name, code) for name, code in ATTACKS.items()]
    _judge(tried)
    done = await workspace.python(PythonCall(code="6 * 7"))
    assert done.result == "42"


async def test_no_attack_of_a_program_gets_through(new_workspace: Open) -> None:
    workspace = await new_workspace()
    tried = [await _as_a_program(workspace, name, code) for name, code in ATTACKS.items()]
    _judge(tried)
    done = await workspace.exec(ExecCall(shell="echo $((6 * 7))"))
    assert done.stdout == "42\n"


async def test_an_attack_that_gets_through_would_be_seen(new_workspace: Open) -> None:
    workspace = await new_workspace()
    for tried in (
        await _as_a_cell(workspace, "nothing", does("pass")),
        await _as_a_program(workspace, "nothing", does("pass")),
    ):
        assert tried.got_through, tried
    denied = await _as_a_cell(workspace, "raises", does("raise OSError"))
    assert not denied.got_through


async def test_what_is_left_out_is_an_attack_of_the_graders_suite() -> None:
    assert ALLOWED.keys() <= (SYSTEM_CALLS | FILES).keys()
    assert len(ATTACKS) >= 80


async def _as_a_cell(workspace: Workspace, name: str, code: str) -> Tried:
    done = await workspace.python(PythonCall(code=code, wall_s=PATIENCE_S, cpu_s=10))
    shown = f"{done.stdout}{done.stderr}{done.result}{done.traceback}"
    return Tried(name=name, way="cell", status=done.status, shown=shown)


async def _as_a_program(workspace: Workspace, name: str, code: str) -> Tried:
    done = await workspace.exec(ExecCall(argv=["python3", "-c", code], wall_s=PATIENCE_S, cpu_s=10))
    return Tried(name=name, way="exec", status=done.status, shown=done.stdout + done.stderr)


def _judge(tried: list[Tried]) -> None:
    assert [str(one) for one in tried if one.got_through] == []
    limits = [str(one) for one in tried if one.status not in ("ok", "failed")]
    assert limits == [], f"an attack that hangs shows nothing; {GOT_THROUGH}"
    shown = "".join(one.shown for one in tried)
    assert not any(canary in shown for canary in CANARIES.values())
