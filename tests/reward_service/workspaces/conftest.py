"""Real workspaces of both tiers, and an account of what a service holds for them."""

import os
import signal
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from services.protocol.errors import InvalidInput
from services.protocol.reward.workspaces import OpenWorkspace
from services.reward_service.workspaces.config import WorkspacesConfig
from services.reward_service.workspaces.jails import processes, side_thread
from services.reward_service.workspaces.jails.workspace_jail import WorkspaceJail
from services.reward_service.workspaces.workspace import Workspace
from services.reward_service.workspaces.workspaces import Workspaces

OWNER = "tests"
LIMIT_S = 300.0
Opener = Callable[..., Awaitable[Workspace]]


async def start_workspaces(tier: str, **settings: Any) -> Workspaces:
    """A started service of this tier; skips the test where the machine has none."""
    config = {"starts_per_s": 1000.0, "starts_at_once": 1000, "shared_user": True, **settings}
    given = {"require_tier": tier, "use_bubblewrap": tier == "A", **config}
    started = Workspaces(WorkspacesConfig.model_validate(given))
    try:
        await started.start()
    except InvalidInput as problem:
        if tier == "B":
            raise
        pytest.skip(f"tier A is not to be had here: {problem}")
    assert started.tier == tier
    return started


@pytest_asyncio.fixture(scope="session", loop_scope="session", params=["A", "B"])
async def workspaces(request: pytest.FixtureRequest) -> AsyncIterator[Workspaces]:
    """A started service, in each tier that this machine has."""
    started = await start_workspaces(request.param)
    yield started
    await started.aclose()


@pytest_asyncio.fixture(loop_scope="session")
async def opened(workspaces: Workspaces) -> AsyncIterator[Opener]:
    """Opens workspaces, and closes them after the test: nothing of them may be left."""
    before = held_descriptors()
    made: list[Workspace] = []

    async def open_one(**spec: Any) -> Workspace:
        made.append(await workspaces.open(OpenWorkspace.model_validate(spec), owner=OWNER))
        return made[-1]

    yield open_one
    names = [one.jail.name for one in made]
    for one in made:
        await one.close("closed")
    assert processes_of(names) == set()
    assert held_descriptors() == before


@pytest_asyncio.fixture(loop_scope="session")
async def workspace(opened: Opener) -> Workspace:
    """An open workspace."""
    return await opened()


def held_descriptors() -> int:
    """Open descriptors of this process, once no look of a call that has ended is under way."""
    side_by_side = threading.Barrier(side_thread._THREADS)
    looks = [
        side_thread._threads.submit(side_by_side.wait, LIMIT_S) for _ in range(side_by_side.parties)
    ]
    for one in looks:
        one.result(LIMIT_S)
    return len(os.listdir("/proc/self/fd"))


def processes_of(names: list[str]) -> set[int]:
    """Processes whose command line or environment names one of these jails."""
    found = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        for file in ("cmdline", "environ"):
            try:
                text = (entry / file).read_bytes()
            except OSError:
                continue
            if any(name.encode() in text for name in names):
                found.add(int(entry.name))
    return found


def running(workspace: Workspace) -> list[int]:
    """Processes of a workspace, its first one left out."""
    return processes.descendants(workspace.jail.agent)


def end_call_and_interpreter(
    jail: WorkspaceJail, end_call: Callable[[str], None], how: str
) -> None:
    """End a call whose interpreter has reported, and kill that before the agent looks at it."""
    (interpreter,) = processes.descendants(jail.agent)
    os.kill(jail.agent, signal.SIGSTOP)  # so that it hears of the report and the death at once
    end_call(how)
    handle = os.pidfd_open(interpreter)
    os.kill(interpreter, signal.SIGKILL)
    assert processes.has_ended(handle, 60)
    os.close(handle)
    os.kill(jail.agent, signal.SIGCONT)
