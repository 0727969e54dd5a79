"""Services raise their soft limit of open files, and sandboxes do not."""

import asyncio
import inspect
import subprocess
import sys
from importlib import import_module
from typing import Any

import pytest

from services.open_files import most_connections

RAISED = """
import resource, subprocess, sys
from services.open_files import open_files, raise_open_files
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 300))
raise_open_files()
ask = "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE))"
print(open_files(), subprocess.check_output([sys.executable, "-c", ask], text=True))
"""
PROCESSES = {
    "services.router.app": "Router",
    "services.rollout_server.app": "RolloutServer",
    "services.orchestrator.app": "Orchestrator",
    "services.reward_service.app": "RewardReplica",
    "services.trainer.app": "TrainerDeployment",
    "services.trainer.rank.rank": "TrainerRank",
    "services.page.app": "Page",
    "services.weight_bus.actor": "WeightBusActor",
}


class _Raised(Exception):
    pass


def _raised() -> None:
    raise _Raised


@pytest.mark.parametrize("module", PROCESSES)
def test_every_service_raises_its_limit_before_anything_else(
    module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"{module}.raise_open_files", _raised)
    made: Any = getattr(import_module(module), PROCESSES[module])
    made = getattr(made, "func_or_class", made)

    class Never(made):  # type: ignore[misc]
        def __del__(self) -> None:
            """It never was."""

    async def start() -> None:
        nothing = [None] * len(inspect.signature(made).parameters)
        starting: Any = made.__init__(Never.__new__(Never), *nothing)
        await starting  # Serve awaits the constructors of some

    with pytest.raises(_Raised):
        asyncio.run(start())


def test_the_soft_limit_becomes_the_hard_one_also_for_what_is_started_then() -> None:
    said = subprocess.check_output([sys.executable, "-c", RAISED], text=True)
    assert said.split("\n")[0] == "300 (300, 300)"


def test_half_of_what_a_limit_leaves_is_for_clients() -> None:
    assert most_connections(1024) == (1024 - 256) // 2
    assert most_connections(100) == 25
