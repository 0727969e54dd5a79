"""In any mixture of answers each has its own verdict: no answer chooses to have none."""

import asyncio
import shutil
from collections.abc import Callable
from typing import Any

import pytest

from services.protocol.reward.code_tests import Limits
from services.reward_service.judging import custom_checker
from services.reward_service.sandbox import sandbox
from services.reward_service.scoring import Scoring
from tests.redteam.mixture import is_fair, long_answers, mixture

FEW, MANY = 40, 400
LIMIT_S = 800.0


@pytest.mark.parametrize("tier", ["A", "B"])
async def test_an_answer_cannot_choose_to_have_no_verdict(
    new_scoring: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
    tier: str,
) -> None:
    many = request.config.getoption("--all-attacks", default=False)
    monkeypatch.setattr(custom_checker, "_LIMITS", Limits(cpu_s=0.5, output_kb=64))
    monkeypatch.setattr(sandbox, "_machine_is_contended", lambda: False)
    number = "tests.reward_service.own_graders:number"
    scoring: Scoring = await new_scoring(tier, graders={"number": number}, compile_cpu_s=5)
    compiled = many and shutil.which("g++") is not None
    answers = mixture(MANY if many else FEW, seed=19, compiled=compiled) + long_answers()
    try:
        jobs = [answer.job for answer in answers]
        scores = await asyncio.wait_for(scoring.score(jobs), LIMIT_S)
        surprises = [
            f"{answer.name}: {score.verdict} {score.reward} {score.detail}"
            for answer, score in zip(answers, scores, strict=True)
            if not is_fair(answer, score.verdict, score.reward)
        ]
        assert surprises == []
        assert scoring.healthy
        assert scoring.tools.failures_in_a_row == 0
    finally:
        await scoring.tools.aclose()


@pytest.mark.parametrize("count", [FEW, MANY])
def test_every_second_answer_is_hostile_and_each_is_another(count: int) -> None:
    answers = mixture(count, seed=19, compiled=True)
    kinds = [answer.name.partition(":")[0] for answer in answers]
    assert len(answers) == count
    assert kinds.count("right") == kinds.count("wrong") == count // 4
    code = [
        one.job.completion for one in answers if one.job.grader.kind in ("code", "python_asserts")
    ]
    assert len(set(code)) == len(code)
    assert {"attack", "hack", "checker", "sleeper", "text"} <= set(kinds)
