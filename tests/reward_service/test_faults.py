"""What goes wrong on our side is never a reward; what an answer breaks is never excused."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from services.protocol.reward.code_tests import Limits
from services.protocol.reward.reward_service import Score, ScoreJob, Verdict
from services.reward_service.isolation.jail import Jail
from services.reward_service.sandbox import sandbox
from services.reward_service.sandbox.core_queue import QueueFull
from services.reward_service.sandbox.execution import Execution, Outcome, Program, SlotLost
from services.reward_service.sandbox.slot import Slot
from services.reward_service.scoring import Scoring

JobMaker = Callable[..., ScoreJob]
NewScoring = Callable[..., Any]

RIGHT = "def f(a, b):\n    return a + b"
BUSY = "def f(a, b):\n    while True: pass"


@pytest_asyncio.fixture(params=["A", "B"])
async def fresh(request: pytest.FixtureRequest, new_scoring: NewScoring) -> AsyncIterator[Scoring]:
    """A service with one slot, that a test may break."""
    scoring = await new_scoring(request.param, slots=1)
    yield scoring
    scoring.close()


async def score_one(scoring: Scoring, job: ScoreJob) -> Score:
    (score,) = await asyncio.wait_for(scoring.score([job]), 300)
    return score


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)


def break_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Jail, "command", lambda self, fd, name, mounts: ["/bin/false"])


async def test_a_job_survives_the_loss_of_its_slot(
    fresh: Scoring, function_job: JobMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, lost = Slot.run, []

    async def run_and_lose(self: Slot, execution: Execution) -> Outcome:
        if not lost:
            lost.append(self)
            signal.pidfd_send_signal(self._server, signal.SIGKILL)
        return await run(self, execution)

    monkeypatch.setattr(Slot, "run", run_and_lose)
    score = await score_one(fresh, function_job(RIGHT))
    assert (score.verdict, score.reward) == (Verdict.ACCEPTED, 1.0)
    assert len(lost) == 1


async def test_an_answer_that_loses_two_slots_earns_nothing(
    fresh: Scoring,
    function_job: JobMaker,
    processes_of: Callable[[Scoring], set[int]],
) -> None:
    slot = fresh.sandbox._workers[0].answers
    idle = len(processes_of(fresh))
    scoring = asyncio.create_task(score_one(fresh, function_job(BUSY, cpu_s=20)))
    for _ in range(2):
        await until(lambda: slot.alive and len(processes_of(fresh)) > idle)
        first = slot._process
        signal.pidfd_send_signal(slot._server, signal.SIGKILL)
        await until(lambda first=first: slot._process is not first)  # type: ignore[misc]
    score = await asyncio.wait_for(scoring, 300)
    assert (score.verdict, score.reward) == (Verdict.CRASHED_SANDBOX, 0.0), score
    await until(lambda: not processes_of(fresh))
    assert (await score_one(fresh, function_job(RIGHT))).verdict is Verdict.ACCEPTED


async def test_an_infrastructure_failure_is_never_a_reward(
    fresh: Scoring, function_job: JobMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        break_starting(broken)
        for slot in [worker.answers for worker in fresh.sandbox._workers]:
            slot.close()
        score = await score_one(fresh, function_job(RIGHT))
        assert (score.verdict, score.reward) == (Verdict.INFRA_ERROR, None)
    with monkeypatch.context() as broken:

        async def fail(self: Slot, execution: Execution) -> Outcome:
            raise ZeroDivisionError("a bug of ours")

        broken.setattr(Slot, "run", fail)
        score = await score_one(fresh, function_job(RIGHT))
        assert (score.verdict, score.reward) == (Verdict.INFRA_ERROR, None)
    score = await score_one(fresh, function_job(RIGHT))
    assert (score.verdict, score.reward, score.cached) == (Verdict.ACCEPTED, 1.0, False)


async def test_a_process_that_could_not_be_confined_runs_no_code(
    fresh: Scoring, function_job: JobMaker
) -> None:
    slot = fresh.sandbox._workers[0].answers
    seccomp = slot._seccomp
    slot.close()
    slot._seccomp = type(seccomp)(program=b"\xff" * 16, own_pid_at=4)
    score = await score_one(fresh, function_job(RIGHT))
    assert (score.verdict, score.reward) == (Verdict.INFRA_ERROR, None)
    assert "confined" in score.detail


async def test_a_full_queue_holds_callers_in_the_cluster_back(
    new_scoring: NewScoring, function_job: JobMaker
) -> None:
    """They wait their turn instead of failing, and what waits stays below the bound."""
    scoring = await new_scoring("B", slots=1, queue_cpu_s=0.001)
    try:
        jobs = [function_job(f"{RIGHT}\n# {number}") for number in range(8)]
        busy = asyncio.create_task(scoring.score([function_job(BUSY, cpu_s=0.5)]))
        call = asyncio.create_task(scoring.score(jobs))
        await until(lambda: scoring.sandbox.cores.queued_s > 0)
        with pytest.raises(QueueFull):
            scoring.sandbox.cores.refuse_if_full()
        scores = await asyncio.wait_for(call, 300)
        await busy
    finally:
        scoring.close()
    assert {score.verdict for score in scores} == {Verdict.ACCEPTED}
    assert scoring.sandbox.cores.queued_s == 0


async def test_nobody_waits_for_a_slot_for_ever(
    new_scoring: NewScoring, function_job: JobMaker
) -> None:
    scoring = await new_scoring("B", slots=1, queue_wait_s=0.1)
    try:
        jobs = [function_job(BUSY, cpu_s=0.6), function_job(RIGHT)]
        busy, waiting = await asyncio.wait_for(scoring.score(jobs), 300)
    finally:
        scoring.close()
    assert busy.verdict is Verdict.TIME_LIMIT
    assert (waiting.verdict, waiting.reward) == (Verdict.INFRA_ERROR, None)


async def test_one_slow_answer_holds_back_no_other_score(
    new_scoring: NewScoring, function_job: JobMaker, processes_of: Callable[[Scoring], set[int]]
) -> None:
    """At its own deadline it is given up alone, and its slot serves the next answer."""
    scoring = await new_scoring("B", slots=1, answer_deadline_s=8)
    try:
        jobs = [function_job(RIGHT), function_job(BUSY, cpu_s=60), function_job(f"{RIGHT}\n# 2")]
        right, slow, waiting = await asyncio.wait_for(scoring.score(jobs), 300)
        assert (right.verdict, right.reward) == (Verdict.ACCEPTED, 1.0)
        assert (slow.verdict, slow.reward) == (Verdict.INFRA_ERROR, None)
        assert slow.detail == "not graded in 8 s"
        assert (waiting.verdict, waiting.reward) == (Verdict.INFRA_ERROR, None)
        await until(lambda: not processes_of(scoring))
        assert (await score_one(scoring, function_job(RIGHT + "\n"))).verdict is Verdict.ACCEPTED
    finally:
        scoring.close()


async def test_a_cancelled_call_stops_its_jobs_and_frees_the_slot(
    fresh: Scoring, function_job: JobMaker, processes_of: Callable[[Scoring], set[int]]
) -> None:
    idle = len(processes_of(fresh))
    call = asyncio.create_task(fresh.score([function_job(BUSY, cpu_s=20)]))
    await until(lambda: len(processes_of(fresh)) > idle)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await until(lambda: not processes_of(fresh))
    assert (await score_one(fresh, function_job(RIGHT))).verdict is Verdict.ACCEPTED


async def test_a_service_without_sandboxes_calls_itself_unhealthy(
    new_scoring: NewScoring, function_job: JobMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    scoring = await new_scoring("B", slots=1, failures_until_unhealthy=3)
    with monkeypatch.context() as broken:
        break_starting(broken)
        scoring.sandbox._workers[0].close()
        for number in range(3):
            assert scoring.healthy
            await score_one(scoring, function_job(f"{RIGHT}\n# {number}"))
    assert not scoring.healthy
    await score_one(scoring, function_job(RIGHT))
    assert scoring.healthy
    scoring.close()


async def test_a_starved_process_gets_a_second_longer_chance(
    new_scoring: NewScoring, function_job: JobMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "_machine_is_contended", lambda: True)
    scoring = await new_scoring("B", slots=1)
    slow = "import time\ndef f(a, b):\n    time.sleep(2.5)\n    return a + b"
    score = await score_one(scoring, function_job(slow, cpu_s=0.1))
    scoring.close()
    assert score.verdict is Verdict.ACCEPTED, score


async def test_closing_ends_every_process(
    fresh: Scoring, processes_of: Callable[[Scoring], set[int]]
) -> None:
    assert processes_of(fresh)
    fresh.close()
    await until(lambda: not processes_of(fresh))
    fresh.close()


async def test_a_closed_slot_says_that_it_is_lost(fresh: Scoring) -> None:
    slot = fresh.sandbox._workers[0].answers
    slot.close()
    with pytest.raises(SlotLost):
        await slot.run(Program(source="").run("", Limits()))
