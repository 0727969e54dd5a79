"""Attacks on what a workspace is given: each ends by a name, and in no time the next call works."""

import asyncio
import contextlib
import os

import pytest

from services.protocol.errors import InvalidInput
from services.protocol.reward.workspaces import ExecCall, PythonCall
from services.reward_service.workspaces.errors import WorkspaceGone
from services.reward_service.workspaces.workspace import Workspace
from services.reward_service.workspaces.workspaces import Workspaces
from tests.redteam.workspaces.conftest import PATIENCE_S, Open, running_in
from tests.redteam.workspaces.on_space import FLOODS, SPEC, Flood

pytestmark = [
    pytest.mark.usefixtures("nothing_grows"),
    pytest.mark.asyncio(loop_scope="session"),
]
LIMIT_S = 600.0
BY_ITSELF = {None, "memory", "disk"}
"""Why a flooded workspace may be gone: it holds too much between two calls."""
OUT_OF_TIME = {"time_limit"}
"""Where others have the processors, the two seconds of a flood are over before it is."""
BOMBS = {
    *("processes: fork bomb", "processes: fork bomb in Python"),
    "processes: children that are never waited for",
}
"""Of up to thousands of processes where the kernel's limit is that of a user who has others as
well: for half a minute the whole machine is slow, and the tests beside it miss their deadlines."""
CLEAN = ExecCall(shell="chmod -R u+rwx . ; rm -rf ./* ./.[!.]* /tmp/*", wall_s=PATIENCE_S)
SPEC_GIVEN = SPEC.model_dump(exclude_defaults=True)


@pytest.mark.parametrize("name", FLOODS)
async def test_a_flood_ends_by_name_and_harms_nobody(
    new_workspace: Open, workspaces: Workspaces, name: str
) -> None:
    if name in BOMBS and shares_user(workspaces):
        pytest.skip("an ordinary user's processes are counted together")
    flooded, neighbour = await new_workspace(**SPEC_GIVEN), await new_workspace()
    trial = asyncio.gather(_flood(flooded, FLOODS[name]), _work(neighbour))
    gone, _ = await asyncio.wait_for(trial, LIMIT_S)
    # On a busy machine a bomb may leave its own supervisor no time to answer.
    assert gone in BY_ITSELF | ({"lost"} if name in BOMBS else set())


async def test_a_flood_of_a_cell_restarts_the_interpreter_and_says_so(
    new_workspace: Open, workspaces: Workspaces
) -> None:
    workspace = await new_workspace(**SPEC_GIVEN)
    gone: set[str | None] = set()
    for name, flood in FLOODS.items():
        if flood.python is None or name in _NOT_A_CELL:
            continue
        if name in BOMBS and shares_user(workspaces):
            continue
        await workspace.python(PythonCall(code="of_before = 1", restart=True))
        try:
            done = await asyncio.wait_for(
                workspace.python(PythonCall(code=flood.python, wall_s=2, cpu_s=1)), LIMIT_S
            )
            # On a disk that an earlier one has filled, a cell that fails is at that limit.
            by_chance = {"ok", "failed", "disk_limit"} | OUT_OF_TIME
            assert done.status in flood.ends | by_chance, (name, done)
            after = await workspace.python(PythonCall(code="of_before"))
        except WorkspaceGone as ended:
            gone.add(ended.reason)
            workspace = await new_workspace(**SPEC_GIVEN)
            continue
        restarted = done.interpreter_restarted or after.interpreter_restarted
        known = after.result == "1"
        assert known != restarted, (name, done, after)
    assert gone <= BY_ITSELF


def shares_user(workspaces: Workspaces) -> bool:
    """Whether programs run as the service's own user."""
    return workspaces.tier == "B" and os.geteuid() != 0


_NOT_A_CELL = {
    "processes: one after the other": "the interpreter's own children go on as it",
}


async def _work(neighbour: Workspace) -> None:
    """What everybody does, beside the flood."""
    for number in range(5):
        cell = await neighbour.python(PythonCall(code=f"x = {number}\nx * 2", wall_s=PATIENCE_S))
        assert cell.result == str(number * 2), cell
        done = await neighbour.exec(ExecCall(shell="echo here", wall_s=PATIENCE_S))
        assert (done.status, done.stdout) == ("ok", "here\n"), done


async def _flood(workspace: Workspace, flood: Flood) -> str | None:
    """Try it; the reason if the workspace is gone then."""
    try:
        done = await workspace.exec(flood.call("python3"))
        assert done.status in flood.ends | OUT_OF_TIME, done
        assert done.exit_code != 0 or done.status == "ok", done
        assert len(done.stdout) + len(done.stderr) <= 64 << 10
        assert running_in(workspace) == [], "processes were left"
        await _usable(workspace, flood)
    except WorkspaceGone as gone:
        return gone.reason
    return None


async def _usable(workspace: Workspace, flood: Flood) -> None:
    """The service can look at what a flood made, and empty it; programs run again."""
    with contextlib.suppress(InvalidInput):  # it has more entries than are listed
        await workspace.list(".")
    await workspace.exec(CLEAN)
    done = await workspace.exec(ExecCall(shell="echo here > new && cat new", wall_s=PATIENCE_S))
    assert (done.status, done.stdout) == ("ok", "here\n"), (flood, done)
    cell = await workspace.python(PythonCall(code="6 * 7", restart=True))
    assert cell.result == "42"
