"""The real service in both tiers, with canaries around it and an account of what it holds."""

import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from services.reward_service.scoring import Scoring
from tests.redteam.attack import CANARIES
from tests.reward_service.conftest import (  # noqa: F401  (fixtures)
    function_job,
    new_scoring,
    processes_of,
    program_job,
    scoring,
)

FindProcesses = Callable[[Scoring], set[int]]
MEMORY_SLACK = 24 << 20
"""Bytes by which service and slots may grow over a family of attacks: what is cached."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all-attacks", action="store_true", help="also attacks that take seconds")


@pytest.fixture(scope="session")
def canary_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A secret on the disk, readable by everybody."""
    path = tmp_path_factory.mktemp("canaries") / "canary"
    path.write_text(CANARIES["file"])
    for folder in (path.parent, *path.parent.parents):
        if folder.stat().st_uid == os.getuid() and str(folder).startswith("/tmp/"):
            folder.chmod(0o755)
    return path


@pytest.fixture(scope="session", autouse=True)
def canaries(canary_file: Path) -> Iterator[None]:
    """One in the environment as well."""
    os.environ["MILLRACE_CANARY"] = CANARIES["environment"]
    yield
    del os.environ["MILLRACE_CANARY"]


@pytest.fixture(scope="module")
def nothing_grows(scoring: Scoring, processes_of: FindProcesses) -> Iterator[None]:  # noqa: F811
    """A family of attacks leaves no process, no descriptor and no memory behind."""
    before = _account(scoring, processes_of)
    yield
    gc.collect()
    after = _account(scoring, processes_of)
    assert after[0] == before[0], "slots were lost or processes left behind"
    kept = len(after[0])  # a slot keeps the program that it ran last
    assert after[1] <= before[1] + kept, "descriptors were left open"
    assert after[2] < before[2] + MEMORY_SLACK


def _account(service: Scoring, find: FindProcesses) -> tuple[set[int], int, int]:
    slots = find(service)
    held = sum(psutil.Process(pid).memory_info().rss for pid in slots)
    assert service.sandbox.compiler is not None
    compiled = service.sandbox.compiler._programs.values()
    remembered = sum(one.binary is not None for one in compiled)  # a descriptor each
    return slots, len(os.listdir("/proc/self/fd")) - remembered, held
