"""Long texts are looked at beside the event loop, and the loop says when it is held up."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from services.observability.loop_lag import observe_loop_lag
from services.observability.metrics import RewardMetrics
from services.protocol.reward.code_graders import CodeGrader
from services.protocol.reward.grader import FormatGrader, MathsGrader
from services.protocol.reward.reward_service import Score, ScoreJob, Verdict
from services.reward_service import http_api
from services.reward_service.config import RewardServiceConfig
from services.reward_service.graders import code, maths, text
from services.reward_service.judging import trial
from services.reward_service.off_loop import Turns, off_loop
from services.reward_service.scoring import Scoring

LONG = 100_000


class Lag:
    """In the place of the histogram."""

    def __init__(self) -> None:
        self.seen: list[float] = []
        self.came = asyncio.Event()

    def observe(self, seconds: float) -> None:
        self.seen.append(seconds)
        self.came.set()


def recorded(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> list[threading.Thread]:
    """The threads in which a function of a module is called from now on."""
    threads: list[threading.Thread] = []
    work: Callable[..., Any] = getattr(module, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        threads.append(threading.current_thread())
        return work(*args, **kwargs)

    monkeypatch.setattr(module, name, call)
    return threads


async def test_short_work_is_done_at_once_and_long_work_in_a_thread() -> None:
    assert await off_loop(10, threading.current_thread) is threading.current_thread()
    assert await off_loop(LONG, threading.current_thread) is not threading.current_thread()
    with pytest.raises(ZeroDivisionError):
        await off_loop(LONG, divmod, 1, 0)


async def test_the_loop_goes_on_while_long_work_is_done() -> None:
    begun, may_end = threading.Event(), threading.Event()

    def work() -> bool:
        begun.set()
        return may_end.wait(60)

    working = asyncio.create_task(off_loop(LONG, work))
    assert await asyncio.to_thread(begun.wait, 60)
    may_end.set()  # which a loop that waited for the work could not do
    assert await asyncio.wait_for(working, 60)


@pytest.mark.parametrize(
    ("module", "name", "grader"),
    [
        (maths, "final_answer", MathsGrader(kind="maths", expected="42", strict=True)),
        (text, "format_problem", FormatGrader(kind="format", boxed=True)),
        (
            code,
            "extract_code",
            CodeGrader.model_validate({"kind": "code", "tests": [{"stdin": "", "expected": ""}]}),
        ),
    ],
)
async def test_a_long_answer_is_searched_beside_the_loop(
    monkeypatch: pytest.MonkeyPatch, module: Any, name: str, grader: Any
) -> None:
    threads = recorded(monkeypatch, module, name)
    scoring = Scoring(RewardServiceConfig(slots=1))
    for completion in ("\\boxed{", "\\boxed{" * LONG):
        job = ScoreJob(job_id="j", completion=completion, grader=grader)
        await asyncio.wait_for(scoring.score([job]), 60)
    await scoring.tools.aclose()
    ours = threading.current_thread()
    assert [thread is ours for thread in threads] == [True, False]


@pytest.mark.asyncio(loop_scope="session")
async def test_long_outputs_and_results_are_compared_beside_the_loop(
    monkeypatch: pytest.MonkeyPatch, scoring: Scoring
) -> None:
    outputs = recorded(monkeypatch, trial, "output_is_right")
    results = recorded(monkeypatch, trial, "result_is_right")
    reports = recorded(monkeypatch, trial, "judge_calls")
    run = {"kind": "code", "tests": [{"stdin": "", "expected": "1"}]}
    call = {"kind": "code", "entry_point": "f", "tests": [{"args": [], "expected": 1}]}
    answers = (
        (f"print('1 ' * {LONG})", run),
        (f"def f():\n    return '(' * {LONG}", call | {"limits": {"output_kb": 1024}}),
    )
    for completion, grader in answers:
        job = ScoreJob(job_id="j", completion=completion, grader=CodeGrader.model_validate(grader))
        (score,) = await asyncio.wait_for(scoring.score([job]), 60)
        assert score.reward == 0.0, score
    ours = threading.current_thread()
    assert (len(outputs), len(results), len(reports)) == (1, 1, 1)
    assert ours not in (*outputs, *results, *reports)


async def test_many_short_results_leave_the_loop_its_turns() -> None:
    turns, others = Turns(), [0]

    def count() -> None:
        others[0] += 1
        loop.call_soon(count)

    loop = asyncio.get_running_loop()
    loop.call_soon(count)
    for _ in range(1000):
        await turns.before(100)
    assert others[0] >= 3
    for _ in range(100):  # little work takes no turns
        before = others[0]
        await Turns().before(100)
        assert others[0] == before


async def test_a_long_request_is_read_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = recorded(monkeypatch, http_api, "_asked")
    scoring = Scoring(RewardServiceConfig(slots=1))
    transport = httpx.ASGITransport(app=http_api.http_api(scoring))
    grader = {"kind": "format", "boxed": True}
    async with httpx.AsyncClient(transport=transport, base_url="http://service") as http:
        for completion in ("x", "x" * LONG):
            job = {"job_id": "j", "completion": completion, "grader": grader}
            answer = await http.post("/v1/grade", json={"jobs": [job]})
            assert answer.json()["verdict"] == "wrong_answer"
    await scoring.tools.aclose()
    ours = threading.current_thread()
    assert [thread is ours for thread in threads] == [True, False]


@pytest.mark.parametrize("streamed", [False, True])
async def test_many_jobs_of_a_call_leave_the_loop_its_turns(
    monkeypatch: pytest.MonkeyPatch, streamed: bool
) -> None:
    """Of 400 that began at once the first turn took 0.15 s."""
    scoring, turn, begun = Scoring(RewardServiceConfig(slots=1)), [0], Counter[int]()

    def count() -> None:
        turn[0] += 1
        loop.call_soon(count)

    async def grade(*_: Any) -> Score:
        begun[turn[0]] += 1
        return Score.failed(Verdict.WRONG_ANSWER, "")

    monkeypatch.setattr(scoring, "_grade", grade)
    loop = asyncio.get_running_loop()
    loop.call_soon(count)
    grader = FormatGrader(kind="format", boxed=True)
    jobs = [ScoreJob(job_id=str(n), completion="", grader=grader) for n in range(100)]
    if streamed:
        scores = [score async for score in scoring.stream(jobs)]
    else:
        scores = await scoring.score(jobs)
        assert [score.job_id for score in scores] == [job.job_id for job in jobs]
    assert len(scores) == sum(begun.values()) == len(jobs)
    assert max(begun.values()) <= 16
    await scoring.tools.aclose()


async def test_a_call_that_is_given_up_while_its_jobs_begin_leaves_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scoring, ended = Scoring(RewardServiceConfig(slots=1)), Counter[str]()
    calling: list[asyncio.Task[Any]] = []

    async def grade(*_: Any) -> Score:
        calling[0].cancel()
        try:
            await asyncio.Event().wait()
        finally:
            ended["grade"] += 1
        raise AssertionError("it was not cancelled")

    monkeypatch.setattr(scoring, "_grade", grade)
    grader = FormatGrader(kind="format", boxed=True)
    jobs = [ScoreJob(job_id=str(n), completion="", grader=grader) for n in range(100)]
    calling.append(asyncio.create_task(scoring.score(jobs)))
    await asyncio.wait(calling, timeout=60)
    assert calling[0].cancelled()
    assert 0 < ended["grade"] < len(jobs)
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "score"]
    await scoring.tools.aclose()


async def test_the_lag_of_a_loop_that_is_held_up_is_seen() -> None:
    lag = Lag()
    observing = asyncio.create_task(observe_loop_lag(lag, period_s=0.01))  # type: ignore[arg-type]
    await asyncio.wait_for(lag.came.wait(), 60)
    lag.came.clear()
    time.sleep(0.3)  # noqa: ASYNC251 - it holds the loop up
    await asyncio.wait_for(lag.came.wait(), 60)
    observing.cancel()
    assert max(lag.seen) > 0.2


async def test_a_service_observes_its_loop_from_its_start_to_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def nothing() -> None:
        return None

    lag = Lag()
    monkeypatch.setattr(RewardMetrics, "loop_lag", lag)
    scoring = Scoring(RewardServiceConfig(slots=1))
    monkeypatch.setattr(scoring.sandbox, "start", nothing)
    await scoring.start()
    await asyncio.wait_for(lag.came.wait(), 60)
    (task,) = (task for task in asyncio.all_tasks() if task.get_name() == "loop_lag")
    scoring.close()
    scoring.close()
    await asyncio.wait([task], timeout=60)
    assert task.cancelled()


def test_a_service_may_be_closed_after_its_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    async def nothing() -> None:
        return None

    scoring = Scoring(RewardServiceConfig(slots=1))
    monkeypatch.setattr(scoring.sandbox, "start", nothing)
    asyncio.run(scoring.start())
    scoring.close()
