"""Graders that run no code of the policy's: texts, maths, users' own, compositions."""

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator
from typing import Any

import psutil
import pytest
import pytest_asyncio
from aiohttp import web
from pydantic import TypeAdapter, ValidationError

from services.observability.metrics import RewardMetrics
from services.protocol.reward.grader import Grader, MathsGrader, WeightedGrader
from services.protocol.reward.reward_service import Score, ScoreJob, Verdict
from services.reward_service.config import RewardServiceConfig
from services.reward_service.graders.maths import decide
from services.reward_service.sandbox.core_queue import CoreQueue
from services.reward_service.scoring import GRADERS, Scoring

ON_ONE_LOOP = pytest.mark.asyncio(loop_scope="module")
OWN = "tests.reward_service.own_graders"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def graders(judge_url: str) -> AsyncIterator[Scoring]:
    """A service with users' graders and no sandbox, which none of these needs."""
    scoring = Scoring(
        RewardServiceConfig(
            slots=2,
            graders={"odd": f"{OWN}:odd"},
            grader_modules=[OWN],
            http_graders={"judge": judge_url, "gone": "http://127.0.0.1:9/"},
        )
    )
    yield scoring
    await scoring.tools.aclose()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def judge_url() -> AsyncIterator[str]:
    """An endpoint that rewards what its arguments say, and fails once, or on an answer, if told."""
    failed: set[str] = set()

    async def judge(request: web.Request) -> web.Response:
        body = await request.json()
        answer = body["arguments"]
        if answer.get("fail_once") and body["completion"] not in failed:
            failed.add(body["completion"])
            return web.Response(status=503)
        if answer.get("fail_on") == body["completion"]:
            return web.Response(status=500)
        if answer.get("hang_on") == body["completion"]:
            await asyncio.sleep(60)
        return web.Response(text=json.dumps(answer))

    app = web.Application()
    app.router.add_post("/", judge)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}/"
    await runner.cleanup()


async def graded(scoring: Scoring, completion: str, **grader: Any) -> Score:
    model = TypeAdapter(Grader).validate_python(grader)
    job = ScoreJob(job_id="j", completion=completion, grader=model)
    (score,) = await asyncio.wait_for(scoring.score([job]), 300)
    return score


def test_every_kind_of_the_protocol_has_its_grader() -> None:
    union = TypeAdapter(Grader).json_schema()["discriminator"]["mapping"]
    models = [*GRADERS, WeightedGrader]
    kinds = {model.model_fields["kind"].annotation.__args__[0] for model in models}
    assert kinds == set(union)


@ON_ONE_LOOP
@pytest.mark.parametrize(
    ("completion", "grader", "right"),
    [
        ("<think>8?</think> 42\n", {"expected": "42"}, True),
        ("42.", {"expected": "42"}, False),
        ("Paris", {"expected": ["paris", "lutetia"], "ignore_case": True}, True),
        ("a <b>1</b> c <b>2</b>", {"expected": "2", "pattern": "<b>(.*?)</b>"}, True),
        ("a <b>2</b> c <b>1</b>", {"expected": "2", "pattern": "<b>(.*?)</b>"}, False),
    ],
)
async def test_exact_compares_the_answer(
    graders: Scoring, completion: str, grader: dict[str, Any], right: bool
) -> None:
    score = await graded(graders, completion, kind="exact", **grader)
    assert (score.verdict is Verdict.ACCEPTED, score.reward) == (right, float(right)), score


@ON_ONE_LOOP
async def test_a_pattern_that_takes_for_ever_is_stopped_and_earns_nothing(
    graders: Scoring,
) -> None:
    assert (await graded(graders, "xaay", kind="regex", pattern="a{2}")).reward == 1.0
    assert (await graded(graders, "xaay", kind="regex", pattern="a{2}", whole=True)).reward == 0.0
    score = await graded(graders, "a" * 60 + "b", kind="regex", pattern="(a+)+$")
    assert (score.verdict, score.reward) == (Verdict.TIME_LIMIT, 0.0)


@ON_ONE_LOOP
@pytest.mark.parametrize(
    ("completion", "right"),
    [
        ("<think>t</think><answer>\\boxed{1}</answer>\n```py\nx\n```", True),
        ("<answer>\\boxed{1}</answer><think>t</think>\n```py\nx\n```", False),
        ("<think>t</think><think></think><answer>\\boxed{1}</answer>\n```py\nx\n```", False),
        ("<think>t</think><answer>\\boxed{ }</answer>\n```py\nx\n```", False),
        ("<think>t</think><answer>\\boxed{1}</answer>\n```py\nx\n", False),
        ("<think>t</think><answer>\\boxed{1}</answer>\n```py\nx\n```" + "y" * 200, False),
    ],
)
async def test_a_form_is_all_that_is_asked_for(
    graders: Scoring, completion: str, right: bool
) -> None:
    form = {"tags": ["think", "answer"], "boxed": True, "code": True, "max_characters": 120}
    score = await graded(graders, completion, kind="format", **form)
    assert score.reward == float(right), score


@ON_ONE_LOOP
@pytest.mark.parametrize(
    ("answer", "expected", "loose", "strict"),
    [
        (r"so \boxed{42}", "42", True, True),
        ("The answer is 42.", "42", True, False),
        ("The answer is **42**.", "42", True, False),
        ("The answer is **42.**", "42", True, False),
        ("The answer is *42*.", "42", True, False),
        ("The answer is __42__.", "42", True, False),
        ("The answer is `42`.", "42", True, False),
        ("The answer is **3/4**.", "0.75", True, False),
        ("The answer is **1,234**.", "1234", True, False),
        ("The answer is **-7**.", "-7", True, False),
        ("The answer is: **B**.", "B", True, False),
        ("The answer is **.5**.", "0.5", True, False),
        ("The answer is .5", "0.5", True, False),
        ("The answer is $42$.", "42", True, False),
        ("The answer is **$42$**.", "42", True, False),
        (r"The answer is \(42\).", "42", True, False),
        (r"The answer is **\(42\)**.", "42", True, False),
        ("The answer is 2*3*7.", "42", True, False),
        ("The answer is 4*2.", "42", False, False),
        (r"\boxed{1,234.50}", "1234.5", True, True),
        (r"\boxed{\frac{2}{4}}", "0.5", True, False),
        (r"\boxed{\frac{1}{2}}", "0.5", True, True),
        (r"\boxed{50\%}", "1/2", True, True),
        (r"\boxed{41} or \boxed{42}", "41", False, False),
        (r"\boxed{42} \boxed{}", "42", True, True),
        (r"\boxed{40+2}", "42", True, False),
        (r"\boxed{x+x}", "2x", True, False),
        (r"\boxed{2x}", "2x", True, True),
        (r"\boxed{x^2+2x+1}", "(x+1)^2", True, False),
        (r"\boxed{\sqrt{18}}", r"3\sqrt{2}", True, False),
        (r"\boxed{3\sqrt{2}}", r"\sqrt{2}\cdot 3", True, True),
        (r"\boxed{43}", "42", False, False),
        # Of an equation the last side counts, unless numbers in it contradict each other.
        (r"\boxed{x=42}", "42", True, False),
        (r"\boxed{f(2)=42}", "42", True, False),
        (r"\boxed{40+2=42}", "42", True, False),
        (r"\boxed{41=42}", "42", False, False),
        (r"\boxed{x=41=42}", "42", False, False),
        (r"\boxed{42=x=41}", "41", False, False),
        (r"\boxed{40+1=42}", "42", False, False),
        (r"\boxed{\frac{1}{3}=0.33}", "0.33", True, False),
        (r"\boxed{\pi=3.14}", "3.14", True, False),
        (r"\boxed{\frac{1}{3}=0.35}", "0.35", False, False),
        (r"\boxed{42\text{ cm}}", "42", True, False),
        (r"\boxed{\tan 60^\circ=\sqrt{3}}", r"\sqrt{3}", True, False),
        # Two numbers side by side are no number, unless the second continues the first.
        (r"\boxed{4 2}", "42", False, False),
        (r"\boxed{4\,2}", "42", False, False),
        (r"\boxed{4$2}", "42", False, False),
        (r"\boxed{4 2}", "6", False, False),
        (r"\boxed{1, 234}", "1234", False, False),
        (r"\boxed{10\,000}", "10000", True, True),
        (r"\boxed{10,\!000}", "10000", True, True),
        (r"\boxed{1 000 000}", "1,000,000", True, True),
        (r"\boxed{3 1/2}", "7/2", True, True),
        (r"\boxed{\frac 1 2}", "0.5", True, True),
        # Brackets may be left out or be others, but not in a strict answer.
        (r"\boxed{1,2}", "(1,2)", True, False),
        (r"\boxed{1,2}", r"\{1,2\}", True, False),
        (r"\boxed{(1,2)}", r"\{1,2\}", True, False),
        (r"\boxed{\{1,2\}}", "(1,2)", True, False),
        (r"\boxed{(1, 2)}", "(1,2)", True, True),
        (r"\boxed{\left\{2, 1\right\}}", r"\{1,2\}", True, True),
        (r"\boxed{2,1}", "(1,2)", False, False),
        (r"\boxed{(2,1)}", "(1,2)", False, False),
        (r"\boxed{[1,2]}", "(1,2)", False, False),
        (r"\boxed{2,1}", "1,2", True, True),
        (r"\boxed{\{1,2\}}", "1,2", True, True),
        (r"\boxed{x=1,x=2}", "1,2", True, False),
        # Scientific notation is exact, however small the number is.
        (r"\boxed{6.626 \times 10^{-34}}", "6.626e-34", True, True),
        (r"\boxed{6.02e23}", r"6.02 \times 10^{23}", True, True),
        (r"\boxed{6.02 \cdot 10^{23}}", "6.02e23", True, True),
        (r"\boxed{-10^{-5}}", "-1e-05", True, True),
        (r"\boxed{.5×10^3}", "5e2", True, True),
        (r"\boxed{10^{2}}", "100", True, False),
        (r"\boxed{4.2\times 10^1}", "42", True, False),
        (r"\boxed{1e2}", "100", True, True),
        (r"\boxed{\frac{2}{10^{5}}}", "2e-05", True, False),
        (r"\boxed{6e}", "2e3", False, False),
        (r"\boxed{9.1\times 10^{-31}}", r"6.626 \times 10^{-34}", False, False),
        (r"\boxed{9\times 10^{-8}}", "0.00000015", False, False),
        # Small numbers differ, too, and so do those in lists and equations.
        (r"\boxed{2^{-100}}", "2^{-99}", False, False),
        (r"\boxed{\frac{1}{51!}}", r"\frac{1}{52!}", False, False),
        (r"\boxed{\frac{1}{52!}}", r"\frac{1}{52!}", True, True),
        (r"\boxed{\frac{1}{52!}}", "0", False, False),
        (r"\boxed{x=2^{-100}}", "2^{-99}", False, False),
        (r"\boxed{x=2^{-100}}", "x=2^{-99}", False, False),
        (r"\boxed{(1,2^{-100})}", "(1,2^{-99})", False, False),
        (r"\boxed{\{2^{-100},1\}}", r"\{1,2^{-99}\}", False, False),
        (r"\boxed{\{2^{-99},1\}}", r"\{1,2^{-99}\}", True, True),
        (r"\boxed{x<2^{-100}}", "x<2^{-99}", False, False),
        (r"\boxed{[0,2^{-100}]}", "[0,2^{-99}]", False, False),
        (
            r"\boxed{\begin{pmatrix}2^{-100}\end{pmatrix}}",
            r"\begin{pmatrix}2^{-99}\end{pmatrix}",
            False,
            False,
        ),
        (r"\boxed{2^{-100}i}", "2^{-99}i", False, False),
        (r"\boxed{0.00000009}", r"\sqrt{2}\cdot 10^{-7}", False, False),
        (r"\boxed{0.141421}", r"\frac{\sqrt{2}}{10}", True, True),
        (r"\boxed{\sqrt{2}+\sqrt{3}-\sqrt{5+2\sqrt{6}}}", "0", True, False),
    ],
)
async def test_maths_is_exact_then_numeric_then_symbolic(
    graders: Scoring, answer: str, expected: str, loose: bool, strict: bool
) -> None:
    found = [
        await graded(graders, answer, kind="maths", expected=expected, strict=how)
        for how in (False, True)
    ]
    assert [score.reward for score in found] == [float(loose), float(strict)], found


def test_numbers_are_decided_without_algebra() -> None:
    assert decide("1e3", ["1000"], strict=False) is True
    assert decide("7", ["8", "9"], strict=False) is False
    assert decide("0.333", [r"\frac{1}{3}"], strict=False) is False
    assert decide("x", ["2"], strict=False) is None
    assert decide("9" * 5000, ["2"], strict=True) is False


@ON_ONE_LOOP
async def test_a_hostile_formula_is_stopped_and_earns_nothing(graders: Scoring) -> None:
    started = time.monotonic()
    hostile = r"\boxed{9^{9^{9^{9^{9}}}} - x}"
    grader = {"kind": "maths", "expected": "x + y^2", "timeout_s": 0.3}
    score = await graded(graders, hostile, **grader)
    assert score.reward == 0.0, score
    assert score.verdict in (Verdict.TIME_LIMIT, Verdict.WRONG_ANSWER)
    assert time.monotonic() - started < 30
    assert (await graded(graders, r"\boxed{y^2+x}", **grader | {"timeout_s": 9})).reward == 1.0


@ON_ONE_LOOP
async def test_a_users_function_is_a_decorator_or_a_line_of_configuration(
    graders: Scoring,
) -> None:
    score = await graded(graders, "12345", kind="python", name="length", arguments={"target": 10})
    assert (score.verdict, score.reward) == (Verdict.ACCEPTED, 0.5)


@ON_ONE_LOOP
@pytest.mark.parametrize("what", ["hang", "die", "raise", "nan", "inf", "text", "list", "none"])
async def test_an_answer_on_which_a_users_function_fails_earns_what_the_task_says(
    graders: Scoring, what: str
) -> None:
    limit_s = 0.2 if what == "hang" else 20.0
    wanted = {"kind": "python", "name": "odd", "arguments": {"what": what}, "timeout_s": limit_s}
    late = Verdict.TIME_LIMIT if what == "hang" else Verdict.WRONG_ANSWER
    for told, verdict, reward in (
        ({}, late, 0.0),
        ({"reference": "good"}, late, 0.0),
        ({"on_failure": -1.0}, late, -1.0),
        ({"on_failure": None}, Verdict.INFRA_ERROR, None),
        ({"reference": "bad"}, Verdict.INFRA_ERROR, None),  # it fails on this one, too
    ):
        score = await graded(graders, "x", **wanted, **told)
        assert (score.verdict, score.reward) == (verdict, reward), (told, score)
        assert "odd" in score.detail


@ON_ONE_LOOP
@pytest.mark.parametrize(
    "grader",
    [
        {"name": "never registered"},
        {"name": "odd", "arguments": {"that": 1}},
        {"name": "odd"},
        {"name": "odd", "arguments": {"what": "no verdict"}},
    ],
)
async def test_what_no_answer_could_mend_in_a_users_function_is_no_reward(
    graders: Scoring, grader: dict[str, Any], faults: list[float]
) -> None:
    score = await graded(graders, "x", kind="python", **grader)
    assert (score.verdict, score.reward) == (Verdict.INFRA_ERROR, None), score
    assert faults == [1]


@pytest.fixture
def faults(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Faults of tasks, as they are counted."""
    counted: list[float] = []
    monkeypatch.setattr(RewardMetrics.task_faults, "inc", lambda: counted.append(1))
    return counted


@ON_ONE_LOOP
async def test_a_helper_that_is_gone_is_no_answers_doing(graders: Scoring) -> None:
    """Its calls end with it, which looks as if they had died by themselves."""
    wanted = {"kind": "python", "name": "odd", "arguments": {"what": "hang"}, "timeout_s": 60}
    asked = asyncio.create_task(graded(graders, "x", **wanted))
    users = graders.tools._users
    deadline = time.monotonic() + 60
    while users._process is None or not psutil.Process(users._process.pid).children():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
    users._process.kill()
    score = await asked
    assert (score.verdict, score.reward) == (Verdict.INFRA_ERROR, None), score


@ON_ONE_LOOP
async def test_a_call_that_nobody_waits_for_is_ended(graders: Scoring) -> None:
    """Or more of them than `user_grader_processes` would run."""
    wanted = {"kind": "python", "name": "odd", "arguments": {"what": "hang"}, "timeout_s": 600}
    assert (await graded(graders, "good", **wanted)).reward == 1.0, "the helper runs"
    helper = psutil.Process(graders.tools._users._process.pid)
    asked = asyncio.create_task(graded(graders, "x", **wanted))
    deadline = time.monotonic() + 60
    while not (calls := helper.children()):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)
    (call,) = calls
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    await asyncio.to_thread(call.wait, 30)  # by itself it would end after a minute
    assert helper.is_running()
    assert (await graded(graders, "good", **wanted)).reward == 1.0


@ON_ONE_LOOP
async def test_a_users_endpoint_is_asked_twice(graders: Scoring) -> None:
    arguments = {"reward": 0.25, "fail_once": True}
    score = await graded(graders, "x", kind="http", name="judge", arguments=arguments)
    assert score.reward == 0.25, score


@ON_ONE_LOOP
@pytest.mark.parametrize(
    ("told", "reference"),
    [({"fail_on": "bad"}, None), ({"fail_on": "bad"}, "good"), ({"hang_on": "bad"}, None)],
)
async def test_an_answer_on_which_a_users_endpoint_fails_earns_what_the_task_says(
    graders: Scoring, told: dict[str, str], reference: str | None
) -> None:
    arguments = {"reward": 0.25, **told}
    asked = {"kind": "http", "name": "judge", "arguments": arguments, "timeout_s": 5.0}
    asked |= {"reference": reference}
    good = await graded(graders, "good", **asked)
    assert (good.verdict, good.reward) == (Verdict.ACCEPTED, 0.25), good
    asked["timeout_s"] = 0.3 if "hang_on" in told else 5.0
    bad = await graded(graders, "bad", **asked)
    late = Verdict.TIME_LIMIT if "hang_on" in told else Verdict.WRONG_ANSWER
    assert (bad.verdict, bad.reward) == (late, 0.0), bad
    left_out = await graded(graders, "bad", **asked, on_failure=None)
    assert (left_out.verdict, left_out.reward) == (Verdict.INFRA_ERROR, None)
    down = await graded(graders, "bad", **asked | {"reference": "bad"})
    assert (down.verdict, down.reward) == (Verdict.INFRA_ERROR, None)


@ON_ONE_LOOP
@pytest.mark.parametrize(
    "arguments",
    [{"reward": "1"}, {"rewards": 1}, {"reward": float("nan")}, {"reward": 10**400}],
)
async def test_an_endpoint_without_a_number_is_no_reward(
    graders: Scoring, arguments: dict[str, Any]
) -> None:
    score = await graded(graders, "y", kind="http", name="judge", arguments={"x": 1} | arguments)
    assert (score.verdict, score.reward) == (Verdict.INFRA_ERROR, None)


@ON_ONE_LOOP
async def test_an_endpoint_that_is_gone_or_unknown_is_no_reward(graders: Scoring) -> None:
    for name in ("gone", "never"):
        score = await graded(graders, "y", kind="http", name=name)
        assert (score.verdict, score.reward) == (Verdict.INFRA_ERROR, None)


@ON_ONE_LOOP
async def test_a_composition_adds_weighted_rewards(graders: Scoring) -> None:
    parts = [
        {"grader": {"kind": "maths", "expected": "42"}, "weight": 0.9},
        {"grader": {"kind": "format", "tags": ["think"]}, "weight": 0.1},
        {"grader": {"kind": "regex", "pattern": "sorry"}, "weight": -0.5},
    ]
    score = await graded(graders, r"sorry, \boxed{42}", kind="weighted", parts=parts)
    assert score.reward == pytest.approx(0.4)
    assert (score.verdict, score.passed, score.total) == (Verdict.WRONG_ANSWER, 2, 3)
    assert [part.reward for part in score.parts] == [1.0, 0.0, 1.0]
    whole = [
        {"grader": {"kind": "regex", "pattern": "."}, "weight": one} for one in (0.7, 0.2, 0.1)
    ]
    assert (await graded(graders, "x", kind="weighted", parts=whole)).reward == 1.0
    parts.append({"grader": {"kind": "http", "name": "never"}, "weight": 0.0})
    score = await graded(graders, r"\boxed{42}", kind="weighted", parts=parts)
    assert (score.verdict, score.reward) == (Verdict.INFRA_ERROR, None)


@pytest.mark.parametrize(
    "grader",
    [
        {"kind": "regex", "pattern": "("},
        {"kind": "regex", "pattern": "x(?i)y"},
        {"kind": "regex", "pattern": "(?i)y"},
        {"kind": "exact", "expected": "1", "pattern": "no group"},
        {"kind": "exact", "expected": []},
        {"kind": "maths", "expected": []},
        {"kind": "format", "tags": []},
        {"kind": "weighted", "parts": []},
        {"kind": "weighted", "parts": [{"grader": {"kind": "weighted", "parts": []}}]},
        {"kind": "code", "tests": [{"stdin": "", "expected": 1}]},
        {"kind": "code", "tests": [{"args": [1], "expected": 1}]},
        {"kind": "code", "tests": [{"args": [1], "stdin": "", "expected": 1}]},
        {"kind": "code", "entry_point": "f", "tests": [{"stdin": "", "expected": ""}]},
        {"kind": "code"},
        {"kind": "code", "tests": [{"stdin": "", "expected": ""}], "test_set": "0" * 64},
        {"kind": "nothing"},
        {"kind": "maths", "expected": "1", "timeout_s": float("nan")},
    ],
)
def test_a_grader_that_cannot_work_is_refused(grader: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(Grader).validate_python(grader)


def test_a_grader_knows_its_number_of_tests() -> None:
    assert MathsGrader(kind="maths", expected="1").total == 1


@ON_ONE_LOOP
async def test_a_users_function_takes_a_core_while_it_runs(
    graders: Scoring, monkeypatch: pytest.MonkeyPatch
) -> None:
    cores, free = graders.sandbox.cores, list[int]()

    async def call(*_: Any, **__: Any) -> float:
        free.append(cores._free)
        return 1.0

    monkeypatch.setattr(graders.tools._users, "call", call)
    score = await graded(graders, "abc", kind="python", name="length", arguments={"target": 3})
    assert score.reward == 1.0
    assert (free, cores._free) == ([1], 2)


@ON_ONE_LOOP
async def test_a_users_function_that_waits_for_its_place_takes_no_core(
    graders: Scoring, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox, began, may_end = graders.sandbox, asyncio.Event(), asyncio.Event()
    places = CoreQueue(cores=1, bound_s=math.inf, wait_s=300)
    monkeypatch.setattr(sandbox, "user_graders", places)

    async def call(*_: Any, **__: Any) -> float:
        began.set()
        await may_end.wait()
        return 1.0

    monkeypatch.setattr(graders.tools._users, "call", call)
    how = {"kind": "python", "name": "length", "arguments": {"target": 3}}
    asked = [asyncio.create_task(graded(graders, "abc", **how)) for _ in range(3)]
    await began.wait()
    for _ in range(100):  # turns of the loop, many more than the others need
        await asyncio.sleep(0)
    assert places.waiting == 2
    assert (sandbox.cores._free, sandbox.cores.waiting) == (1, 0)
    assert sandbox.queued_s > 0
    asked.pop().cancel()
    impatient = graders.config.model_copy(update={"queue_wait_s": 0.01})
    monkeypatch.setattr(graders.tools, "config", impatient)
    late = await graded(graders, "abc", **how)
    assert (late.verdict, late.detail) == (Verdict.INFRA_ERROR, "no core in 0.01 s")
    may_end.set()
    assert [score.reward for score in await asyncio.gather(*asked)] == [1.0, 1.0]
    assert (places._free, sandbox.cores._free, sandbox.queued_s) == (1, 2, 0)
