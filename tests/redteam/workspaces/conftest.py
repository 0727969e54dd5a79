"""Real workspaces in both tiers, what the service holds of them, and who may be attacked."""

import contextlib
import gc
import os
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio

from services.protocol.errors import InvalidInput
from services.protocol.reward.workspaces import ExecCall, OpenWorkspace
from services.reward_service.workspaces.config import WorkspacesConfig
from services.reward_service.workspaces.jails.processes import descendants
from services.reward_service.workspaces.workspace import Workspace
from services.reward_service.workspaces.workspaces import Workspaces

Open = Callable[..., Awaitable[Workspace]]
MEMORY_SLACK = 32 << 20
PATIENCE_S = 300.0
"""`wall_s` of calls that take milliseconds: on a busy machine they may wait long for a CPU."""
PROGRAMS_PYTHON = "/usr/bin/python3"
"""What `python3` of a program is."""


async def start_workspaces(tier: str, **settings: Any) -> Workspaces:
    """A started service of this tier.

    Skips a test where tier A is not to be had.
    """
    config = {
        "require_tier": tier,
        "use_bubblewrap": tier == "A",
        "shared_user": True,
        "starts_per_s": 1000.0,
        "starts_at_once": 1000,
    }
    workspaces = Workspaces(WorkspacesConfig.model_validate(config | settings))
    try:
        await workspaces.start()
    except InvalidInput as problem:
        if tier == "B":
            raise
        pytest.skip(f"tier A is not to be had here: {problem}")
    return workspaces


@pytest_asyncio.fixture(scope="session", loop_scope="session", params=["A", "B"])
async def workspaces(request: pytest.FixtureRequest) -> AsyncIterator[Workspaces]:
    """One service for all attacks of a tier."""
    if shutil.which(PROGRAMS_PYTHON) is None:
        pytest.skip(f"needs {PROGRAMS_PYTHON}")
    service = await start_workspaces(request.param)
    yield service
    await service.aclose()


@pytest_asyncio.fixture(loop_scope="session")
async def new_workspace(workspaces: Workspaces) -> AsyncIterator[Open]:
    """Opens workspaces that nobody else attacks; they are closed with the test."""
    opened: list[Workspace] = []

    async def one(**spec: Any) -> Workspace:
        found = await workspaces.open(OpenWorkspace(**spec), owner="redteam")
        opened.append(found)
        await refuse_without_a_jail(found)
        return found

    yield one
    for found in opened:
        await found.close("closed")


async def refuse_without_a_jail(workspace: Workspace) -> None:
    """Some attacks signal everybody and fork without an end: no test runs them where they could
    reach the machine.

    Raises:
        AssertionError: the workspace's programs could signal this process, or have no limits.
    """
    look = (
        "import os, resource\n"
        f"try: os.kill({os.getpid()}, 0); reached = True\n"
        "except OSError: reached = False\n"
        "limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]\n"
        "print(reached, os.getuid() != 0, 0 < limit <= 4096)"
    )
    done = await workspace.exec(ExecCall(argv=["python3", "-c", look], wall_s=PATIENCE_S))
    assert done.stdout == "False True True\n", done


def running_in(workspace: Workspace) -> list[str]:
    """Command lines of what runs in a workspace beside its first process."""
    found = []
    for process in descendants(workspace.jail.agent):
        with contextlib.suppress(psutil.Error):
            one = psutil.Process(process)
            if one.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(one.cmdline()))
    return found


def everything(workspaces: Workspaces) -> tuple[set[int], int, int]:
    """Processes below this one, its descriptors, and its memory in bytes."""
    gc.collect()
    own = psutil.Process()
    below = {child.pid for child in own.children(recursive=True)}
    return below, len(os.listdir("/proc/self/fd")), own.memory_info().rss


def mounts(workspaces: Workspaces) -> list[str]:
    """Mounts in the service's folders; tests that run at the same time make mounts elsewhere."""
    assert workspaces._scratch is not None
    folder = str(workspaces._scratch.path)
    return [one for one in Path("/proc/self/mountinfo").read_text().splitlines() if folder in one]


@pytest.fixture(scope="module")
def nothing_grows(workspaces: Workspaces) -> Any:
    """A family of attacks leaves no process, descriptor, mount or memory behind."""
    before = everything(workspaces)
    yield
    after = everything(workspaces)
    assert after[0] <= before[0], "processes were left"
    assert after[1] <= before[1] + 2, "descriptors were left open"
    assert after[2] < before[2] + MEMORY_SLACK
    assert mounts(workspaces) == []
