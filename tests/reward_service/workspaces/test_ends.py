"""Every end of a workspace has a reason, and leaves nothing, whatever happens at the same time."""

import asyncio
import os
import signal
from collections.abc import Awaitable
from dataclasses import replace
from pathlib import Path

import pytest

from services.protocol.errors import InvalidInput
from services.protocol.reward.workspaces import ExecCall, OpenWorkspace, PythonCall
from services.reward_service.workspaces.errors import (
    QuotaFull,
    UnknownWorkspace,
    WorkspaceFault,
    WorkspaceGone,
)
from services.reward_service.workspaces.jails.workspace_jail import WorkspaceJail
from services.reward_service.workspaces.workspace import Workspace
from services.reward_service.workspaces.workspaces import Workspaces
from tests.reward_service.workspaces.conftest import (
    OWNER,
    Opener,
    held_descriptors,
    processes_of,
    running,
)

pytestmark = pytest.mark.asyncio(loop_scope="session")

PATIENCE_S = 300.0
SLEEP = ExecCall(shell="echo begun; sleep 1000", wall_s=3600)


async def within(call: Awaitable[object]) -> object:
    return await asyncio.wait_for(call, PATIENCE_S)


async def begun(workspace: Workspace, call: ExecCall = SLEEP) -> asyncio.Task[object]:
    """A call whose program has begun."""
    first = asyncio.Event()
    task = asyncio.ensure_future(workspace.exec(call, lambda stream, part: first.set()))
    await within(first.wait())
    return task


async def gone(workspaces: Workspaces, workspace: Workspace, reason: str) -> None:
    """It ends with a reason, and nothing of it is left."""
    await within(workspace.close("closed"))
    assert workspace.reason == reason
    with pytest.raises(WorkspaceGone, match=reason):
        workspaces.find(workspace.id, owner=OWNER)
    with pytest.raises(WorkspaceGone, match=reason):
        await workspace.exec(ExecCall(shell="true"))
    assert processes_of([workspace.jail.name]) == set()
    assert folders_of(workspace) == []


def folders_of(workspace: Workspace) -> list[Path]:
    return list(Path("/tmp").glob(f"millrace-workspaces-*/{workspace.jail.name}"))


async def test_a_closed_workspace_is_gone(workspaces: Workspaces, opened: Opener) -> None:
    workspace = await opened()
    await workspace.exec(ExecCall(shell="sleep 1000 & echo > f"))
    await workspace.python(PythonCall(code="import subprocess; subprocess.Popen(['sleep', '99'])"))
    await gone(workspaces, workspace, "closed")


async def test_a_jail_that_does_not_start_in_time_names_its_deadline_and_leaves_nothing(
    workspaces: Workspaces, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurried = workspaces._config.model_copy(update={"start_s": 0.0})
    monkeypatch.setattr(workspaces, "_settings", replace(workspaces._settings, config=hurried))
    with pytest.raises(WorkspaceFault, match=r"did not start in start_s = 0 s.*raise start_s"):
        await opened()


async def test_a_workspace_is_closed_after_a_time_without_a_call(
    workspaces: Workspaces, opened: Opener
) -> None:
    workspace = await opened(idle_s=0.2)
    ended = asyncio.Event()
    workspace.when_ended(lambda one: ended.set())
    assert (await workspace.exec(ExecCall(shell="sleep 0.5"))).status == "ok"
    await within(ended.wait())
    await gone(workspaces, workspace, "idle")


async def test_a_workspace_is_closed_after_its_time_with_the_call_that_runs(
    workspaces: Workspaces, opened: Opener
) -> None:
    workspace = await opened(total_s=0.5)
    with pytest.raises(WorkspaceGone, match="total"):
        await within(workspace.exec(SLEEP))
    await gone(workspaces, workspace, "total")


async def test_a_close_ends_the_call_that_runs_and_those_that_wait(
    workspaces: Workspaces, opened: Opener
) -> None:
    workspace = await opened()
    calls = [await begun(workspace)]
    calls += [asyncio.ensure_future(workspace.python(PythonCall(code="1"))) for _ in range(3)]
    calls += [asyncio.ensure_future(workspace.write("f", b""))]
    await asyncio.sleep(0)
    await within(asyncio.gather(workspace.close("closed"), workspace.close("closed")))
    for call in calls:
        with pytest.raises(WorkspaceGone, match="closed"):
            await within(call)
    await gone(workspaces, workspace, "closed")


@pytest.mark.parametrize("kind", ["exec", "python", "none"])
async def test_a_jail_that_dies_is_a_lost_workspace(
    workspaces: Workspaces, opened: Opener, kind: str
) -> None:
    workspace = await opened()
    await workspace.exec(ExecCall(shell="echo > f"))
    code = "import os\nfor _ in range(3):\n  if os.fork() == 0:\n    os.setsid()\n"
    code += "print('begun', flush=True)\nimport time; time.sleep(1000)"
    ended = asyncio.Event()
    workspace.when_ended(lambda one: ended.set())
    call = None
    if kind == "exec":
        call = await begun(workspace, ExecCall(argv=["python3", "-c", code], wall_s=3600))
    elif kind == "python":
        first = asyncio.Event()
        cell = PythonCall(code=code, wall_s=3600)
        call = asyncio.ensure_future(workspace.python(cell, lambda stream, part: first.set()))
        await within(first.wait())
    os.kill(workspace.jail.agent, signal.SIGKILL)
    if call is not None:
        with pytest.raises(WorkspaceGone, match="lost"):
            await within(call)
    await within(ended.wait())
    await gone(workspaces, workspace, "lost")


async def test_a_program_cannot_end_its_own_jail_nor_forge_a_result(workspace: Workspace) -> None:
    await workspace.python(PythonCall(code="kept = 1"))
    code = (
        "import os, signal\n"
        "for number in (9, 2, 15, 19, 10):\n"
        "    for process in (1, os.getppid(), -1):\n"
        "        if number == 19 and process == -1: continue\n"
        "        try: os.kill(process, number)\n"
        "        except OSError: pass\n"
        "print('alive')\n"
    )
    result = await workspace.exec(ExecCall(argv=["python3", "-c", code], wall_s=60))
    assert (result.status, result.stdout) == ("ok", "alive\n")
    assert (await workspace.python(PythonCall(code="kept"))).result == "1"


async def test_a_call_whose_caller_leaves_is_ended_and_the_workspace_goes_on(
    workspace: Workspace,
) -> None:
    await workspace.python(PythonCall(code="kept = 1"))
    (interpreter,) = running(workspace)
    call = await begun(workspace)
    waiting = asyncio.ensure_future(workspace.exec(ExecCall(shell="echo waited")))
    leaving = asyncio.ensure_future(workspace.exec(SLEEP))
    await asyncio.sleep(0)
    for one in (leaving, call):
        one.cancel()
        with pytest.raises(asyncio.CancelledError):
            await one
    assert (await within(waiting)).stdout == "waited\n"  # type: ignore[attr-defined]
    assert running(workspace) == [interpreter]
    assert (await workspace.python(PythonCall(code="kept"))).result == "1"


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 8, 13, 21])
async def test_a_caller_may_leave_at_any_moment(workspace: Workspace, turns: int) -> None:
    for make in (
        lambda: workspace.exec(SLEEP),
        lambda: workspace.python(PythonCall(code="import time; time.sleep(1000)", wall_s=3600)),
        lambda: workspace.write("f", b"x" * 1000),
    ):
        call = asyncio.ensure_future(make())  # type: ignore[no-untyped-call]
        for _ in range(turns):
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.wait([call])
        assert (await within(workspace.exec(ExecCall(shell="echo on")))).stdout == "on\n"  # type: ignore[attr-defined]
    assert workspace.idle_left_s <= workspace.spec.idle_s


async def test_an_idle_time_goes_on_after_a_caller_has_left(
    workspaces: Workspaces, opened: Opener
) -> None:
    workspace = await opened(idle_s=0.2)
    ended = asyncio.Event()
    workspace.when_ended(lambda one: ended.set())
    call = await begun(workspace)
    call.cancel()
    await within(ended.wait())
    await gone(workspaces, workspace, "idle")


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 8])
async def test_an_opening_that_is_given_up_leaves_nothing(
    workspaces: Workspaces, turns: int
) -> None:
    before, held = len(workspaces.of("leaver")), held_descriptors()
    opening = asyncio.ensure_future(
        workspaces.open(OpenWorkspace(files={"a": "b"}), owner="leaver")
    )
    for _ in range(turns):
        await asyncio.sleep(0)
    opening.cancel()
    await asyncio.wait([opening])
    assert len(workspaces.of("leaver")) == before
    assert held_descriptors() == held
    assert workspaces._quotas._open["leaver"] == 0


async def test_a_jail_that_dies_while_it_is_opened_is_a_fault_and_leaves_nothing(
    workspaces: Workspaces, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = held_descriptors()
    made: list[WorkspaceJail] = []
    begin = WorkspaceJail._begin

    def dying(jail: WorkspaceJail, passed: int) -> None:
        made.append(jail)
        begin(jail, passed)
        jail.kill()
        assert jail._process is not None
        jail._process.wait(PATIENCE_S)

    monkeypatch.setattr(WorkspaceJail, "_begin", dying)
    with pytest.raises(WorkspaceFault):
        await workspaces.open(OpenWorkspace(), owner=OWNER)
    assert held_descriptors() == held
    assert processes_of([jail.name for jail in made]) == set()
    monkeypatch.undo()
    start = WorkspaceJail.start

    async def dying_later(jail: WorkspaceJail) -> None:
        await start(jail)
        jail.kill()

    monkeypatch.setattr(WorkspaceJail, "start", dying_later)
    with pytest.raises(WorkspaceFault):
        await workspaces.open(OpenWorkspace(files={"a": "b"}), owner=OWNER)
    assert held_descriptors() == held


async def test_too_many_waiting_calls_are_refused(workspace: Workspace) -> None:
    first = await begun(workspace)
    waiting = [asyncio.ensure_future(workspace.exec(ExecCall(shell="true"))) for _ in range(16)]
    await asyncio.sleep(0)
    with pytest.raises(QuotaFull, match="16 calls"):
        await workspace.exec(ExecCall(shell="true"))
    first.cancel()
    results = await within(asyncio.gather(*waiting))
    assert {result.status for result in results} == {"ok"}  # type: ignore[attr-defined]


async def test_calls_run_one_after_the_other(workspace: Workspace) -> None:
    line = "[ ! -e busy ] && touch busy && sleep 0.05 && rm busy"
    calls = [workspace.exec(ExecCall(shell=line)) for _ in range(8)]
    assert {result.status for result in await asyncio.gather(*calls)} == {"ok"}


async def test_another_owners_workspace_is_as_unknown_as_none(
    workspaces: Workspaces, opened: Opener
) -> None:
    workspace = await opened()
    with pytest.raises(UnknownWorkspace) as others:
        workspaces.find(workspace.id, owner="somebody")
    with pytest.raises(UnknownWorkspace) as nobodys:
        workspaces.find("f" * 32, owner="somebody")
    assert str(others.value).replace(workspace.id, "") == str(nobodys.value).replace("f" * 32, "")
    await workspace.close("closed")
    with pytest.raises(UnknownWorkspace):
        workspaces.find(workspace.id, owner="somebody")
    assert workspaces.of("somebody") == []


async def test_more_than_may_be_had_is_refused(workspaces: Workspaces) -> None:
    for asked in ({"memory_mb": 8192}, {"disk_mb": 8192}, {"processes": 1024}, {"idle_s": 7200}):
        with pytest.raises(InvalidInput, match="Ask for at most"):
            await workspaces.open(OpenWorkspace.model_validate(asked), owner=OWNER)
