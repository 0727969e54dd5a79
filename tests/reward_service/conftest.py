"""Real sandboxes of both tiers, and jobs for them."""

import atexit
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from services.protocol.errors import InvalidInput
from services.protocol.reward.code_graders import PythonFunctionGrader, PythonStdioGrader
from services.protocol.reward.code_tests import FunctionTest, Limits, StdioTest
from services.protocol.reward.reward_service import ScoreJob
from services.reward_service.config import RewardServiceConfig
from services.reward_service.scoring import Scoring

JobMaker = Callable[..., ScoreJob]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--all-problems", action="store_true", help="compile all of test_problems")


@pytest_asyncio.fixture(scope="session", loop_scope="session", params=["A", "B"])
async def scoring(request: pytest.FixtureRequest) -> AsyncIterator[Scoring]:
    """A started service with three slots, in each tier that this machine has."""
    scoring = await start_scoring(request.param)
    yield scoring
    scoring.close()


@pytest.fixture(scope="session")
def new_scoring() -> Callable[..., Any]:
    return start_scoring


@cache
def _toolchain() -> str:
    """One precompiled header for all tests; pytest's own folders are closed to the jails."""
    folder = tempfile.mkdtemp(prefix="millrace-tests-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


async def start_scoring(tier: str, **settings: Any) -> Scoring:
    config = RewardServiceConfig.model_validate(
        {
            "toolchain_dir": _toolchain(),
            "slots": 3,
            "require_tier": tier,
            "use_bubblewrap": tier == "A",
            **settings,
        }
    )
    scoring = Scoring(config)
    try:
        await scoring.start()
    except InvalidInput as problem:
        if tier == "B":
            raise
        pytest.skip(f"tier A is not to be had here: {problem}")
    assert scoring.sandbox.tier == tier
    return scoring


@pytest.fixture(scope="session")
def function_job() -> JobMaker:
    """A job for `f`, one test by default: `f(20, 1)` is 21."""

    def make(
        code: str, tests: list[tuple[list[Any], Any]] | None = None, **limits: Any
    ) -> ScoreJob:
        declared = [([20, 1], 21)] if tests is None else tests
        grader = PythonFunctionGrader(
            kind="python_function",
            entry_point="f",
            tests=[FunctionTest(args=args, expected=expected) for args, expected in declared],
            limits=Limits(**limits),
        )
        return ScoreJob(job_id="job", completion=code, grader=grader)

    return make


@pytest.fixture(scope="session")
def program_job() -> JobMaker:
    """A job for a program, one test by default: it reads `20 1` and prints `21`."""

    def make(code: str, tests: list[tuple[str, str]] | None = None, **limits: Any) -> ScoreJob:
        declared = [("20 1\n", "21\n")] if tests is None else tests
        grader = PythonStdioGrader(
            kind="python_stdio",
            tests=[StdioTest(stdin=stdin, expected=expected) for stdin, expected in declared],
            limits=Limits(**limits),
        )
        return ScoreJob(job_id="job", completion=code, grader=grader)

    return make


@pytest.fixture(scope="session")
def processes_of() -> Callable[[Scoring], set[int]]:
    """Every process of a service's slots: forks keep the command line with the slot's name."""

    def find(scoring: Scoring) -> set[int]:
        names = [worker.answers.name.encode() for worker in scoring.sandbox._workers]
        found = set()
        for entry in Path("/proc").iterdir():
            try:
                command = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
            except OSError:
                continue
            if any(name in command for name in names):
                found.add(int(entry.name))
        return found

    return find
