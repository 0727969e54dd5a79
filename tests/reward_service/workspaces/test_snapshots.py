"""Snapshots and forks: the files and the variables of a workspace in others."""

import asyncio
from functools import partial
from itertools import count

import pytest

from services.protocol.errors import InvalidInput
from services.protocol.reward.workspaces import ExecCall, OpenWorkspace, PythonCall
from services.reward_service.workspaces.errors import QuotaFull, UnknownSnapshot, WorkspaceFault
from services.reward_service.workspaces.jails.workspace_jail import WorkspaceJail
from services.reward_service.workspaces.running import programs
from services.reward_service.workspaces.snapshot import Snapshots
from services.reward_service.workspaces.workspace import Workspace
from services.reward_service.workspaces.workspaces import Workspaces
from tests.reward_service.workspaces.conftest import (
    OWNER,
    Opener,
    end_call_and_interpreter,
    start_workspaces,
)

ON_ONE_LOOP = pytest.mark.asyncio(loop_scope="session")


async def cell(workspace: Workspace, code: str) -> str | None:
    result = await workspace.python(PythonCall(code=code))
    assert result.status == "ok", result
    return result.result


@ON_ONE_LOOP
async def test_forks_begin_with_the_same_files_and_variables_and_part_then(
    workspaces: Workspaces, opened: Opener
) -> None:
    workspace = await opened(disk_mb=16, memory_mb=256)
    await cell(workspace, "import random\nrandom.seed(3)\nx = 41")
    await cell(workspace, "open('log', 'a').write('once')\nx += 1")
    await workspace.python(PythonCall(code="x = 1 / 0"))
    await workspace.exec(ExecCall(shell="echo later >> log; mkdir -p a/b; chmod 700 a/b"))
    forks = await workspaces.fork(workspace, 3)
    try:
        assert {fork.owner for fork in forks} == {OWNER}
        assert {(fork.spec.disk_mb, fork.spec.memory_mb) for fork in forks} == {(16, 256)}
        for number, fork in enumerate(forks):
            assert await cell(fork, "x") == "42"
            shown = await fork.exec(ExecCall(shell="cat log; stat -c %a a/b"))
            assert shown.stdout == "oncelater\n700\n"
            await cell(fork, f"x = {number}")
            await fork.write("log", b"")
        assert [await cell(fork, "x") for fork in forks] == ["0", "1", "2"]
        assert await cell(workspace, "x") == "42"
    finally:
        await asyncio.gather(*(fork.close("closed") for fork in forks))


@ON_ONE_LOOP
async def test_a_fork_has_links_that_lead_out_as_programs_made_them(
    workspaces: Workspaces, opened: Opener
) -> None:
    """`python -m venv` makes some."""
    workspace = await opened(files={"a/f": "1"})
    await workspace.exec(ExecCall(shell="ln -s /usr/bin/env a/env; ln -s ../../../nowhere a/up"))
    await cell(workspace, "x = 1")
    (fork,) = await workspaces.fork(workspace, 1)
    try:
        shown = await fork.exec(ExecCall(shell="readlink a/env a/up; a/env echo runs"))
        assert shown.stdout == "/usr/bin/env\n../../../nowhere\nruns\n"
        with pytest.raises(InvalidInput):
            await fork.unpack("again", await fork.archive("a"), "tar")
        with pytest.raises(InvalidInput):
            await fork.read("a/env", max_bytes=1 << 20)
    finally:
        await fork.close("closed")


@ON_ONE_LOOP
async def test_a_client_that_leaves_during_a_fork_leaves_no_workspace_open(
    workspaces: Workspaces, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = await opened()
    honest, one_is_open, number = workspaces.open, asyncio.Event(), count()

    async def open_first(spec: OpenWorkspace, *, owner: str) -> Workspace:
        if next(number):
            await asyncio.Event().wait()
        fork = await honest(spec, owner=owner)
        one_is_open.set()
        return fork

    monkeypatch.setattr(workspaces, "open", open_first)
    forking = asyncio.create_task(workspaces.fork(workspace, 2))
    await one_is_open.wait()
    forking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await forking
    assert workspaces.of(OWNER) == [workspace]


@ON_ONE_LOOP
async def test_a_snapshot_outlives_its_workspace_until_it_is_dropped(
    workspaces: Workspaces, opened: Opener
) -> None:
    workspace = await opened(files={"f": "from the snapshot", "g": "likewise"})
    snapshot = await workspaces.snapshot(workspace)
    assert snapshot.bytes > 0
    await workspace.close("closed")
    other = await opened(snapshot=snapshot.id, files={"g": "new"})
    assert (await other.exec(ExecCall(shell="cat f; echo; cat g"))).stdout == (
        "from the snapshot\nnew"
    )
    for owner in ("somebody", OWNER):
        if owner == OWNER:
            workspaces.drop_snapshot(snapshot.id, owner=owner)
        with pytest.raises(UnknownSnapshot):
            await workspaces.open(OpenWorkspace(snapshot=snapshot.id), owner=owner)


@ON_ONE_LOOP
async def test_a_cell_that_fails_when_it_is_run_again_is_named(
    workspaces: Workspaces, opened: Opener
) -> None:
    workspace = await opened()
    await cell(workspace, "import os\nos.mkdir('made')")
    snapshot = await workspaces.snapshot(workspace)
    with pytest.raises(InvalidInput, match="cell 1 failed when it was run again: FileExistsError"):
        await workspaces.open(OpenWorkspace(snapshot=snapshot.id), owner=OWNER)
    workspaces.drop_snapshot(snapshot.id, owner=OWNER)


@ON_ONE_LOOP
async def test_no_workspace_is_opened_without_the_variables_that_it_should_begin_with(
    workspaces: Workspaces, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = await opened()
    await cell(workspace, "x = 1")
    end_call = WorkspaceJail.end_call

    def dies(jail: WorkspaceJail, how: str) -> None:
        end_call_and_interpreter(jail, partial(end_call, jail), how)

    monkeypatch.setattr(WorkspaceJail, "end_call", dies)
    with pytest.raises(WorkspaceFault, match="interpreter died after cell 1"):
        await workspaces.fork(workspace, 1)
    monkeypatch.undo()
    (fork,) = await workspaces.fork(workspace, 1)
    assert await cell(fork, "x") == "1"
    await fork.close("closed")


@ON_ONE_LOOP
async def test_a_restart_forgets_the_cells_of_a_snapshot(
    workspaces: Workspaces, opened: Opener
) -> None:
    workspace = await opened()
    await cell(workspace, "x = 1")
    await workspace.python(PythonCall(code="import sys; sys.exit()"))
    await cell(workspace, "y = 2")
    snapshot = await workspaces.snapshot(workspace)
    assert [one.code for one in snapshot.cells] == ["y = 2"]
    workspaces.drop_snapshot(snapshot.id, owner=OWNER)


@ON_ONE_LOOP
async def test_many_tiny_cells_are_too_many_to_be_kept(
    workspaces: Workspaces, opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "_MAX_CELLS_BYTES", 2000)
    workspace = await opened()
    for _ in range(3):
        await cell(workspace, "1")
    workspaces.drop_snapshot((await workspaces.snapshot(workspace)).id, owner=OWNER)
    await cell(workspace, "1")
    with pytest.raises(InvalidInput, match="restart the interpreter"):
        await workspaces.snapshot(workspace)


@ON_ONE_LOOP
async def test_a_fork_that_does_not_fit_opens_none() -> None:
    small = await start_workspaces("B", per_key=3)
    try:
        workspace = await small.open(OpenWorkspace(), owner=OWNER)
        with pytest.raises(QuotaFull):
            await small.fork(workspace, 3)
        assert small.of(OWNER) == [workspace]
        assert len(await small.fork(workspace, 2)) == 2
    finally:
        await small.aclose()


async def test_snapshots_are_bounded_and_forgotten_when_they_are_not_used() -> None:
    kept = Snapshots(100, keep_s=0.05)
    first = kept.add("a", bytes(60), ())
    with pytest.raises(QuotaFull, match="snapshot_mb"):
        kept.add("a", bytes(60), ())
    with pytest.raises(UnknownSnapshot):
        kept.get(first.id, "b")
    assert kept.get(first.id, "a") is first
    later = asyncio.Event()
    asyncio.get_running_loop().call_later(0.1, later.set)  # a timer behind the other one
    await later.wait()
    with pytest.raises(UnknownSnapshot):
        kept.get(first.id, "a")
    kept.add("a", bytes(100), ())
    kept.clear()
    assert kept.free == 100
