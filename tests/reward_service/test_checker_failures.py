"""A checker that fails on what an answer printed: a 0 of that answer, and of nobody else."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from services.observability.metrics import RewardMetrics
from services.protocol.reward.code_graders import CodeGrader, PythonAssertsGrader
from services.protocol.reward.code_tests import Limits
from services.protocol.reward.reward_service import Score, ScoreJob, Verdict
from services.reward_service.judging import custom_checker
from services.reward_service.scoring import Scoring

pytestmark = pytest.mark.asyncio(loop_scope="module")

ANY_DIVISOR = """
def check(given, expected, got):
    return got.strip().isdigit() and 1 < int(got) < int(given) and int(given) % int(got) == 0
"""
"""As people write it: `isdigit` is true where `int` raises."""

FRAGILE = """
import os, re, sys, time
def check(given, expected, got):
    word = str(got).strip()
    if word.startswith("a"):
        return bool(re.fullmatch("(a+)+", word))
    if word == "sleep":
        time.sleep(999)
    if word == "exit":
        sys.exit(0)
    if word == "die":
        os._exit(0)
    if word == "recurse":
        return check(given, expected, got)
    if word == "flood":
        os.write(1, b"x" * (1 << 20))
    if word == "hoard":
        return bool([0] * 10**9)
    if word == "forge":
        os.write(3, b"=True\\n=True\\n")
    return word and int(word) == int(expected)
"""
"""Fails on what an answer may choose to print."""

FAILURES = {
    "superscript": ("print('\u00b2')", "raised"),
    "many digits": ("print('1' * 5000)", "raised"),
    "bytes": ("import os\nos.write(1, b'\\xff')", "raised"),
    "nothing": ("pass", "no_bool"),
    "a pattern without an end": ("print('a' * 40 + 'b')", "time_limit"),
    "sleep": ("print('sleep')", "time_limit"),
    "exit": ("print('exit')", "raised"),
    "die": ("print('die')", "raised"),
    "recurse": ("print('recurse')", "raised"),
    "flood": ("print('flood')", "output_limit"),
    "hoard": ("print('hoard')", "memory_limit"),
    "forge": ("print('forge')", "raised"),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["A", "B"])
async def strict(
    request: pytest.FixtureRequest, new_scoring: Callable[..., Any]
) -> AsyncIterator[Scoring]:
    """A service that one failure of a sandbox makes unhealthy."""
    scoring = await new_scoring(request.param, slots=1, failures_until_unhealthy=1)
    yield scoring
    scoring.close()


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Why checkers failed, and faults of tasks."""
    found: list[str] = []
    failures, faults = RewardMetrics.checker_failures, RewardMetrics.task_faults
    monkeypatch.setattr(failures, "inc", lambda _, labels: found.append(labels["reason"]))
    monkeypatch.setattr(faults, "inc", lambda: found.append("task"))
    return found


@pytest.fixture
def stop_soon(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Short limits for checkers that hang; others keep the time that a busy machine needs."""
    return lambda: monkeypatch.setattr(custom_checker, "_LIMITS", Limits(cpu_s=0.5))


def job(code: str, source: str, **grader: Any) -> ScoreJob:
    tests = [{"stdin": "91", "expected": "7"}]
    checker = {"kind": "custom", "source": source}
    model = CodeGrader.model_validate(
        {"kind": "code", "tests": tests, "checker": checker, **grader}
    )
    return ScoreJob(job_id=code, completion=code, grader=model)


async def score_one(scoring: Scoring, wanted: ScoreJob) -> Score:
    (score,) = await asyncio.wait_for(scoring.score([wanted]), 120)
    return score


@pytest.mark.parametrize("name", FAILURES)
async def test_an_output_on_which_a_checker_fails_is_a_zero_and_is_counted(
    strict: Scoring, counted: list[str], stop_soon: Callable[[], None], name: str
) -> None:
    code, reason = FAILURES[name]
    if reason == "time_limit":
        stop_soon()
    score = await score_one(strict, job(code, FRAGILE))
    assert score.reward == 0.0, score
    assert score.verdict is Verdict(reason if reason.endswith("limit") else "wrong_answer"), score
    assert "the checker failed on it" in score.detail
    assert counted == [reason]
    assert strict.healthy
    right = await score_one(strict, job("print(7)", FRAGILE))
    assert (right.verdict, right.reward) == (Verdict.ACCEPTED, 1.0), right


async def test_what_a_function_returns_may_break_a_checker_too(
    strict: Scoring, counted: list[str]
) -> None:
    calls = {"entry_point": "f", "tests": [{"args": [1], "expected": 7}] * 2, "policy": "fraction"}
    code = "def f(x):\n    return 'no number'"
    score = await score_one(strict, job(code, FRAGILE, **calls))
    assert (score.verdict, score.reward, score.run) == (Verdict.WRONG_ANSWER, 0.0, 2), score
    assert counted == ["raised", "raised"]
    assert strict.healthy


@pytest.mark.parametrize("output", ["\u00b2", "1" * 5000])
async def test_twenty_five_answers_that_break_the_checker_of_the_docs_leave_the_service_healthy(
    new_scoring: Callable[..., Any], output: str
) -> None:
    scoring = await new_scoring("B", slots=1)
    try:
        bad = [job(f"print({output!r})  # {n}", ANY_DIVISOR) for n in range(25)]
        scores = await asyncio.wait_for(scoring.score([*bad, job("print(7)", ANY_DIVISOR)]), 120)
        assert [score.reward for score in scores] == [0.0] * 25 + [1.0]
        assert scoring.healthy
        assert scoring.tools.failures_in_a_row == 0
    finally:
        scoring.close()


@pytest.mark.parametrize("policy", ["all", "fraction", "grouped"])
async def test_a_checker_that_hangs_is_not_asked_about_the_next_output(
    strict: Scoring, counted: list[str], stop_soon: Callable[[], None], policy: str
) -> None:
    stop_soon()
    tests = [{"stdin": str(n), "expected": "7"} for n in range(45)]
    score = await score_one(
        strict, job("print('a' * 40 + 'b')", FRAGILE, tests=tests, policy=policy)
    )
    assert (score.verdict, score.reward, score.run) == (Verdict.TIME_LIMIT, 0.0, 1), score
    assert counted == ["time_limit"]


BROKEN = {
    "raises before it is called": f"{FRAGILE}\nraise ValueError('no data')",
    "hangs before it is called": f"{FRAGILE}\nwhile True: pass",
    "needs what is not there": f"import numpy_of_the_author\n{FRAGILE}",
}


@pytest.mark.parametrize("name", BROKEN)
async def test_a_checker_that_fails_whatever_the_answer_is_is_the_tasks_fault(
    strict: Scoring, counted: list[str], stop_soon: Callable[[], None], name: str
) -> None:
    if name.startswith("hangs"):
        stop_soon()
    score = await score_one(strict, job("print(7)", BROKEN[name]))
    assert (score.verdict, score.reward) == (Verdict.INFRA_ERROR, None), score
    assert score.detail.startswith("the checker fails by itself: ")
    assert counted == ["task"]
    assert strict.healthy


LOST_WORD = "def check(given, expected, got):\n    return int(got) == int(expectd)"


async def test_a_checker_that_fails_on_the_reference_answer_too_is_the_tasks_fault(
    strict: Scoring, counted: list[str]
) -> None:
    told = await score_one(strict, job("print(8)", LOST_WORD, reference="print(7)"))
    assert (told.verdict, told.reward) == (Verdict.INFRA_ERROR, None), told
    assert told.detail.startswith("test 1, with the reference answer: the checker failed on it")
    assert "expectd" in told.detail
    assert "task" in counted
    assert strict.healthy
    untold = await score_one(strict, job("print(8)", LOST_WORD))
    assert (untold.verdict, untold.reward) == (Verdict.WRONG_ANSWER, 0.0), untold


async def test_a_reference_answer_shows_that_the_answer_broke_the_checker(strict: Scoring) -> None:
    reference = "Seven:\n```python\nprint(7)\n```"
    score = await score_one(strict, job("print('seven')", FRAGILE, reference=reference))
    assert (score.verdict, score.reward) == (Verdict.WRONG_ANSWER, 0.0), score


async def test_tests_that_fail_by_themselves_say_nothing_of_the_sandbox(
    strict: Scoring, counted: list[str]
) -> None:
    tests = "def check(call):\n    for x in (1, 2):\n        assert call(undefined) == x"
    grader = PythonAssertsGrader(kind="python_asserts", tests=tests, entry_point="f")
    score = await score_one(
        strict, ScoreJob(job_id="j", completion="def f(x): return x", grader=grader)
    )
    assert (score.verdict, score.reward) == (Verdict.INFRA_ERROR, None), score
    assert counted == ["task"]
    assert strict.healthy


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def check(given, expected, got", "is not Python"),
        ("def chek(given, expected, got): return True", "no function named check"),
        ("def check(expected, got): return True", "three arguments"),
        ("def check(given, expected, got, *, limit): return True", "three arguments"),
    ],
)
async def test_a_checker_that_nobody_could_call_is_refused_with_the_task(
    source: str, said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        job("print(7)", source)


@pytest.mark.parametrize(
    "source",
    [
        "def check(given, expected, got): return True",
        "def check(*all): return True",
        "check = lambda given, expected, got, limit=1: True",
        "from operator import eq as check",
        "class check:\n    def __new__(cls, given, expected, got): return True",
    ],
)
async def test_a_checker_that_can_be_called_is_not(source: str) -> None:
    job("print(7)", source)
