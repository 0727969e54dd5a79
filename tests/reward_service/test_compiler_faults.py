"""A compiler's jail that is lost counts against the answer; one that never ran does not."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from services.protocol.reward.code_graders import CodeGrader
from services.protocol.reward.reward_service import Score, ScoreJob, Verdict
from services.reward_service.isolation.jail import Jail, jailed_sources
from services.reward_service.sandbox import compiler_jail
from services.reward_service.sandbox.compiler_jail import Build, CompilerJail
from services.reward_service.scoring import Scoring

NewScoring = Callable[..., Any]

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

RIGHT = "#include <iostream>\nint main(){ long a, b; std::cin >> a >> b; std::cout << a + b; }"


@pytest_asyncio.fixture(params=["A", "B"])
async def fresh(request: pytest.FixtureRequest, new_scoring: NewScoring) -> AsyncIterator[Scoring]:
    scoring = await new_scoring(request.param, slots=1)
    yield scoring
    scoring.close()


async def graded(scoring: Scoring) -> Score:
    grader = CodeGrader.model_validate(
        {
            "kind": "code",
            "language": "cpp17",
            "tests": [{"stdin": "20 1\n", "expected": "21\n"}],
        }
    )
    job = ScoreJob(job_id="j", completion=f"```cpp\n{RIGHT}\n```", grader=grader)
    (score,) = await asyncio.wait_for(scoring.score([job]), 120)
    return score


def lose_jails(monkeypatch: pytest.MonkeyPatch, deaths: int) -> list[str]:
    """The next so many jails of answers end the moment a source is to be compiled in them."""
    run, lost = CompilerJail.run, []

    def dying(modules: Any) -> list[tuple[str, str]]:
        start = "    source, errors = descriptors\n"
        sources = [
            (name, text.replace(start, "    os._exit(9)\n"))
            for name, text in jailed_sources(modules)
        ]
        assert any("os._exit(9)" in text for _, text in sources)
        return sources

    async def lose(self: CompilerJail, build: Build) -> Any:
        if b"std::cin >> a" not in build.source or len(lost) == deaths:
            return await run(self, build)
        lost.append("jail")
        with monkeypatch.context() as patched:
            patched.setattr(compiler_jail, "jailed_sources", dying)
            return await run(self, build)

    monkeypatch.setattr(CompilerJail, "run", lose)
    return lost


async def test_a_compilation_survives_the_loss_of_its_jail(
    fresh: Scoring, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = lose_jails(monkeypatch, deaths=1)
    score = await graded(fresh)
    assert (score.verdict, score.reward) == (Verdict.ACCEPTED, 1.0), score
    assert len(lost) == 1


async def test_an_answer_that_loses_two_compilers_earns_nothing(
    fresh: Scoring, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = lose_jails(monkeypatch, deaths=9)
    score = await graded(fresh)
    assert (score.verdict, score.reward) == (Verdict.CRASHED_SANDBOX, 0.0), score
    assert len(lost) == 2
    assert fresh.healthy


async def test_a_compiler_that_cannot_be_started_is_no_verdict(
    fresh: Scoring, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Jail, "command", lambda self, fd, name, mounts=(): ["/bin/false"])
    score = await graded(fresh)
    assert (score.verdict, score.reward) == (Verdict.INFRA_ERROR, None), score
