"""Workspaces of a service that is nobody, not root."""

import asyncio
import fcntl
import multiprocessing
import os
import signal
import tempfile
import traceback
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import pytest

from services.protocol.errors import InvalidInput
from services.protocol.reward.workspaces import ExecCall, OpenWorkspace, PythonCall
from services.reward_service.isolation.jail import SLOT, WORKSPACE, Jail, jailed_sources
from services.reward_service.workspaces.errors import WorkspaceGone
from services.reward_service.workspaces.workspaces import Workspaces
from tests.redteam.test_unprivileged import INTERPRETER, LIMIT_S, NOBODY, _jail
from tests.redteam.test_unprivileged import bubblewrap as bubblewrap  # a fixture
from tests.reward_service.workspaces.conftest import (
    OWNER,
    held_descriptors,
    processes_of,
    running,
    start_workspaces,
)

KILL_ALL = "import os\ntry: os.kill(-1, 9)\nexcept OSError: pass\nprint('alive')"
MOVE = "mkdir into; mv a into; mv into/a .; cat a"
LEAVE = "for i in 1 2 3; do (setsid sh -c 'sleep 1000 & sleep 1000' &); done; echo left"
BOMB = r"""
import fcntl, os, signal
held = open("held", "w")
fcntl.flock(held, fcntl.LOCK_EX)
if os.fork():
    print("begun", flush=True)
    signal.pause()
os.setsid()
os.set_inheritable(held.fileno(), True)
code = "import os\nwhile True:\n  try:\n    if os.fork(): os._exit(0)\n  except OSError: pass"
os.execve("/usr/bin/python3", ["python3", "-c", code], {})
"""
"""Its last process is never one that a search has found, and says nothing of its jail; one of them
holds the lock at any time."""


async def _use(tier: str) -> list[str]:
    """What did not come out as it should."""
    if tier == "B":
        with pytest.raises(InvalidInput, match=r"shared_user: False is not usable\. W"):
            await start_workspaces(tier, shared_user=False)
    workspaces = await start_workspaces(tier)
    held = held_descriptors()
    workspace = await workspaces.open(OpenWorkspace(files={"a": "text"}), owner=OWNER)
    other = await workspaces.open(OpenWorkspace(), owner=OWNER)
    name = workspace.jail.name
    await workspace.python(PythonCall(code="kept = 41"))
    await other.python(PythonCall(code="kept = 1"))
    wrong = []
    id_shown = ("cat a; id -u", f"text{NOBODY}\n")
    for line, shown in (id_shown, (MOVE, "text"), (LEAVE, "left\n")):
        result = await workspace.exec(ExecCall(shell=line))
        if (result.status, result.stdout) != ("ok", shown):
            wrong.append(f"{line}: {result}")
    await workspace.write("b/c", b"kept")
    if await workspace.read("b/c", max_bytes=9) != b"kept":
        wrong.append("a file is not read as it was written")
    await workspace.remove("b")
    result = await workspace.exec(ExecCall(argv=["python3", "-c", KILL_ALL]))
    if result.stdout != "alive\n":
        wrong.append(f"a signal to all: {result}")
    if len(running(workspace)) != 1:
        wrong.append(f"left: {running(workspace)}")
    result = await workspace.exec(ExecCall(shell="sleep 1000", wall_s=0.2))
    if result.status != "time_limit":
        wrong.append(f"time: {result}")
    cells = [await one.python(PythonCall(code="kept + 1")) for one in (workspace, other)]
    if [one.result for one in cells] != ["42", "2"]:
        wrong.append(f"cells: {cells}")
    (fork,) = await workspaces.fork(workspace, 1)
    if (await fork.python(PythonCall(code="kept"))).result != "41":
        wrong.append("the fork has other variables")
    if tier == "B":
        wrong += await _outlives_its_jail(workspaces)
    await workspace.exec(ExecCall(shell="mkdir c; touch c/d; chmod 0 c"))
    for one in (workspace, other, fork):
        await one.close("closed")
    if left := processes_of([name]):
        wrong.append(f"processes: {left}")
    if held_descriptors() != held:
        wrong.append("descriptors were left open")
    await workspaces.aclose()
    return wrong + _folders(name)


async def _outlives_its_jail(workspaces: Workspaces) -> list[str]:
    """What a program that forks as fast as it can does when the first process is killed."""
    workspace = await workspaces.open(OpenWorkspace(files={"held": ""}), owner=OWNER)
    begun, ended = asyncio.Event(), asyncio.Event()
    workspace.when_ended(lambda one: ended.set())
    call = asyncio.ensure_future(
        workspace.exec(
            ExecCall(argv=["python3", "-c", BOMB], wall_s=3600), lambda stream, part: begun.set()
        )
    )
    await asyncio.wait_for(begun.wait(), LIMIT_S)
    with open(Path(workspace.jail.path, "held")) as held:  # noqa: ASYNC230
        os.kill(workspace.jail.agent, signal.SIGKILL)
        with pytest.raises(WorkspaceGone, match="lost"):
            await asyncio.wait_for(call, LIMIT_S)
        await asyncio.wait_for(ended.wait(), LIMIT_S)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return ["a program outlives its jail"]
    return []


def _folders(name: str) -> list[str]:
    return [f"left: {path}" for path in Path("/tmp").glob(f"millrace-workspaces-*/{name}")]


def _as_nobody(answers: Any, tier: str) -> None:
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    try:
        answers.send((None, asyncio.run(_use(tier))))
    except pytest.skip.Exception as skipped:
        answers.send((skipped.msg, []))
    except BaseException:  # noqa: BLE001  (in words: not every exception can be pickled)
        answers.send((None, [traceback.format_exc()]))


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pytest's own folders are closed to nobody."""
    monkeypatch.setattr(tempfile, "tempdir", "/tmp")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become nobody")
@pytest.mark.skipif(not Path(INTERPRETER).exists(), reason=f"needs {INTERPRETER}")
@pytest.mark.parametrize("tier", ["A", "B"])
def test_workspaces_of_a_service_that_is_nobody_hold_as_well(
    tier: str, monkeypatch, temporary, bubblewrap
) -> None:
    monkeypatch.setattr(Jail, "here", partial(_jail, bubblewrap))
    for modules in (SLOT, WORKSPACE):  # all is read now: nobody may not enter root's home
        jailed_sources(modules)
    forks = multiprocessing.get_context("fork")
    answers, theirs = forks.Pipe()
    child = forks.Process(target=_as_nobody, args=(theirs, tier))
    child.start()
    ended = os.pidfd_open(child.pid)
    try:
        assert wait([answers, ended], LIMIT_S), f"nobody neither answers nor ends in {LIMIT_S:g} s"
        assert answers.poll(), "nobody ended without an answer"
        not_tried, wrong = answers.recv()
    finally:
        child.kill()
        child.join(LIMIT_S)
        child.close()
        os.close(ended)
        answers.close()
        theirs.close()
    if not_tried is not None:
        pytest.skip(not_tried)
    assert wrong == []
