"""Thirty real problems: what is known to be right is accepted, what is known to be wrong is not.

Compiling is what costs, so by default only every third problem is graded in C++;
`pytest tests/reward_service/test_problems.py --all-problems` grades all.
"""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import yaml

from services.protocol.reward.code_graders import CodeGrader
from services.protocol.reward.reward_service import ScoreJob, Verdict
from services.reward_service.scoring import Scoring

FILES = sorted((Path(__file__).parent / "problems").glob("*.yaml"))
PROBLEMS: list[dict[str, Any]] = [one for file in FILES for one in yaml.safe_load(file.read_text())]
COMPILED = 3
"""One of so many problems is compiled by default."""
LANGUAGES = {
    "python": ("python", ""),
    "cpp": ("cpp17", "#include <bits/stdc++.h>\nusing namespace std;\n"),
}

in_the_module = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(new_scoring: Callable[..., Any]) -> AsyncIterator[Scoring]:
    """Tier B, which is everywhere: verdicts do not depend on the tier."""
    scoring = await new_scoring("B", slots=2)
    yield scoring
    scoring.close()


def test_every_problem_is_whole_and_has_its_own_name() -> None:
    assert len({problem["name"] for problem in PROBLEMS}) == len(PROBLEMS) == 30
    for problem in PROBLEMS:
        for language in LANGUAGES:
            assert set(problem[language]) == {"good", "bad"}, problem["name"]


@in_the_module
@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem["name"])
async def test_python_solutions_earn_their_verdicts(
    service: Scoring, problem: dict[str, Any]
) -> None:
    await check(service, problem, "python")


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
@in_the_module
@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: problem["name"])
async def test_cpp_solutions_earn_their_verdicts(
    service: Scoring, problem: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    every = request.config.getoption("--all-problems", default=False)
    if PROBLEMS.index(problem) % COMPILED and not every:
        pytest.skip("only with --all-problems")
    await check(service, problem, "cpp")


async def check(service: Scoring, problem: dict[str, Any], language: str) -> None:
    name, prelude = LANGUAGES[language]
    given = "args" if "entry_point" in problem else "stdin"
    grader = CodeGrader.model_validate(
        {
            "kind": "code",
            "language": name,
            "tests": [{given: test, "expected": right} for test, right in problem["tests"]],
            **{key: problem[key] for key in ("entry_point", "checker", "limits") if key in problem},
        }
    )
    jobs = [
        ScoreJob(
            job_id=quality,
            completion=f"```{name}\n{prelude}{problem[language][quality]}```",
            grader=grader,
        )
        for quality in ("good", "bad")
    ]
    good, bad = await asyncio.wait_for(service.score(jobs), 120)
    assert (good.verdict, good.reward) == (Verdict.ACCEPTED, 1.0), good
    verdict = problem["bad"]
    expected = verdict if isinstance(verdict, str) else verdict[language]
    assert (bad.verdict, bad.reward) == (Verdict(expected), 0.0), bad
