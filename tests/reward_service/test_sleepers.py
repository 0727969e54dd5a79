"""Answers that take time without computing: their own loss, and no neighbour's."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from services.protocol.reward.code_graders import CodeGrader, PythonAssertsGrader
from services.protocol.reward.reward_service import ScoreJob, Verdict
from services.reward_service.sandbox import sandbox
from services.reward_service.scoring import Scoring

NewScoring = Callable[..., Any]

TESTS = 45
CPU_S = 0.1
IDLE_S = 2 * CPU_S + 2
"""Seconds after which a process that idles is stopped: of all tests, without a budget, 99."""

SLEEP = "import time\ntime.sleep(999)"
SLEEP_SHORT = "import time\ntime.sleep(2)\nprint(input())"
"""Below the limit of each test."""
SLEEP_IN_CALL = "import time\ndef f(x):\n    time.sleep(999)"
STOP = "import os\ndef f(x):\n    os.kill(os.getpid(), 19)"


@pytest.fixture(autouse=True)
def a_quiet_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """On another one a process that idles has a second chance."""
    monkeypatch.setattr(sandbox, "_machine_is_contended", lambda: False)


def programs(code: str, name: str, policy: str = "fraction", *, cpu_s: float = CPU_S) -> ScoreJob:
    tests = [{"stdin": f"{n}\n", "expected": f"{n}", "group": str(n % 5)} for n in range(TESTS)]
    limits = {"cpu_s": cpu_s}
    return _job(code, name, {"tests": tests, "policy": policy, "limits": limits})


def calls(code: str, name: str, policy: str = "fraction") -> ScoreJob:
    tests = [{"args": [n], "expected": n, "group": str(n % 5)} for n in range(TESTS)]
    return _job(code, name, {"tests": tests, "policy": policy, "entry_point": "f"})


def asserts(code: str, name: str, policy: str = "fraction") -> ScoreJob:
    tests = [f"for x in ({n}, {n}):\n    assert f(x) == x" for n in range(TESTS)]
    grader = {"kind": "python_asserts", "tests": tests, "limits": {"cpu_s": CPU_S}}
    policy = "fraction" if policy == "grouped" else policy
    model = PythonAssertsGrader.model_validate({**grader, "policy": policy})
    return ScoreJob(job_id=name, completion=f"{code}\n# {name}", grader=model)


def _job(code: str, name: str, grader: dict[str, Any]) -> ScoreJob:
    given = {"kind": "code", "limits": {"cpu_s": CPU_S}, **grader}
    model = CodeGrader.model_validate(given)
    return ScoreJob(job_id=name, completion=f"{code}\n# {name}", grader=model)


@pytest.mark.parametrize("policy", ["all", "fraction", "grouped"])
@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (programs, SLEEP),
        (programs, SLEEP_SHORT),
        (calls, SLEEP_IN_CALL),
        (calls, STOP),
        (asserts, SLEEP_IN_CALL),
    ],
)
async def test_an_answer_that_sleeps_in_every_test_earns_a_zero_before_its_deadline(
    new_scoring: NewScoring, kind: Callable[..., ScoreJob], code: str, policy: str
) -> None:
    scoring: Scoring = await new_scoring("B", slots=1, answer_deadline_s=60)
    try:
        began = time.monotonic()
        (score,) = await scoring.score([kind(code, "sleeper", policy)])
        seconds = time.monotonic() - began
    finally:
        scoring.close()
    assert score.verdict is Verdict.TIME_LIMIT, score
    assert score.reward is not None
    assert score.reward <= 2 / TESTS  # those that it did not sleep too long for
    assert score.run <= 3
    assert seconds > 0.8 * IDLE_S


@pytest.mark.parametrize("tier", ["A", "B"])
async def test_sleepers_ahead_of_right_programs_harm_none_of_them(
    new_scoring: NewScoring, tier: str
) -> None:
    """They would have slept for 800 seconds, and the programs would not have been graded."""
    scoring: Scoring = await new_scoring(tier, slots=2, answer_deadline_s=100, queue_wait_s=90)
    try:
        sleepers = [programs(SLEEP, f"sleeper {n}") for n in range(8)]
        # Their own limit is far: on a busy machine one of them may wait for a core for seconds.
        right = [programs("print(input())", f"right {n}", cpu_s=5) for n in range(6)]
        scores = await scoring.score([*sleepers, *right])
    finally:
        scoring.close()
    assert [(score.verdict, score.reward) for score in scores[:8]] == [(Verdict.TIME_LIMIT, 0)] * 8
    assert [(score.verdict, score.reward) for score in scores[8:]] == [(Verdict.ACCEPTED, 1)] * 6


BURN = "while True: pass"


async def test_an_answer_that_computes_beyond_what_it_may_take_in_all_earns_what_it_passed(
    new_scoring: NewScoring,
) -> None:
    """The first test aside it computes for ever: each test ends at its limit, all at another."""
    scoring: Scoring = await new_scoring("B", slots=1, answer_run_s=1.5, answer_deadline_s=60)
    tests = [{"stdin": f"{n}\n", "expected": f"{n}"} for n in range(TESTS)]
    grader = {"tests": tests, "policy": "fraction", "limits": {"cpu_s": 0.4}}
    code = f"if (n := input()) != '0':\n    {BURN}\nprint(n)"
    try:
        (score,) = await scoring.score([_job(code, "burner", grader)])
    finally:
        scoring.close()
    assert (score.verdict, score.passed) == (Verdict.TIME_LIMIT, 1), score
    assert score.reward == pytest.approx(1 / TESTS)
    assert score.run < 10


async def test_waiting_for_a_core_is_no_part_of_what_an_answer_may_take(
    new_scoring: NewScoring,
) -> None:
    """The one at the end waits longer than it may run."""
    scoring: Scoring = await new_scoring("B", slots=1, answer_run_s=2)
    grader = {"tests": [{"stdin": "1\n", "expected": "1"}], "limits": {"cpu_s": 1.0}}
    burners = [_job(BURN, f"burner {n}", grader) for n in range(4)]
    try:
        *burnt, right = await scoring.score([*burners, _job("print(input())", "right", grader)])
    finally:
        scoring.close()
    assert {score.verdict for score in burnt} == {Verdict.TIME_LIMIT}
    assert (right.verdict, right.reward) == (Verdict.ACCEPTED, 1.0), right
    assert right.seconds > 2
