"""Scoring: few calls, every job answered, and failures of the service as data."""

import asyncio
from contextlib import asynccontextmanager
from types import SimpleNamespace

import pytest

from services import peers
from services.orchestrator.config import OrchestratorConfig
from services.orchestrator.rollout import scoring as scoring_module
from services.orchestrator.rollout.scoring import Scorer
from services.protocol.errors import NotReady, ReplicaLost
from services.protocol.reward.code_graders import PythonFunctionGrader
from services.protocol.reward.code_tests import FunctionTest
from services.protocol.reward.reward_service import Score, ScoreJob, Verdict
from tests.orchestrator.fakes import FakeReward, score

GRADER = PythonFunctionGrader(
    kind="python_function", entry_point="f", tests=[FunctionTest(args=[], expected=1)]
)


def jobs(count: int) -> list[ScoreJob]:
    return [ScoreJob(job_id=f"j{i}", completion="good", grader=GRADER) for i in range(count)]


@asynccontextmanager
async def scoring(reward, **settings):
    settings = {"backoff_s": 0.001, "backoff_max_s": 0.002} | settings
    scorer = Scorer(reward, OrchestratorConfig(**settings))
    task = asyncio.create_task(scorer.run())
    try:
        async with asyncio.timeout(300):
            yield scorer
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_jobs_of_many_groups_share_few_calls() -> None:
    reward = FakeReward()
    async with scoring(reward, score_batch=50) as scorer:
        scores = await asyncio.gather(*(scorer.submit(job) for job in jobs(200)))
    assert [score.job_id for score in scores] == [job.job_id for job in jobs(200)]
    assert {score.reward for score in scores} == {1.0}
    assert [len(call) for call in reward.calls] == [50] * 4


async def test_no_more_calls_run_at_a_time_than_allowed() -> None:
    running, most = 0, 0

    class Slow(FakeReward):
        async def score(self, jobs: list[ScoreJob]) -> list[Score]:
            nonlocal running, most
            running, most = running + 1, max(most, running + 1)
            await asyncio.sleep(0.002)
            running -= 1
            return await super().score(jobs)

    async with scoring(Slow(), score_batch=2, score_concurrency=3) as scorer:
        await asyncio.gather(*(scorer.submit(job) for job in jobs(40)))
    assert most == 3


class Held(FakeReward):
    """Holds every call until `free` is set."""

    def __init__(self, sandboxes: int) -> None:
        super().__init__()
        self.count = sandboxes
        self.free = asyncio.Event()

    async def sandboxes(self) -> int:
        return self.count

    async def score(self, jobs: list[ScoreJob]) -> list[Score]:
        scores = await super().score(jobs)
        await self.free.wait()
        return scores


async def _held(reward: Held, *, calls: int) -> None:
    async with asyncio.timeout(60):
        while len(reward.calls) < calls:  # noqa: ASYNC110  (the fake has no event for it)
            await asyncio.sleep(0.001)
    for _ in range(20):  # turns of the loop in which one more would begin
        await asyncio.sleep(0)
    assert len(reward.calls) == calls


async def test_calls_hold_answers_for_all_sandboxes_of_the_service() -> None:
    reward = Held(sandboxes=96)
    async with scoring(reward) as scorer:
        scores = [scorer.submit(job) for job in jobs(1000)]
        await _held(reward, calls=24)
        assert sum(len(call) for call in reward.calls) == 4 * 96
        reward.free.set()
        await asyncio.gather(*scores)


async def test_sandboxes_that_are_added_during_a_run_get_answers(monkeypatch) -> None:
    monkeypatch.setattr(scoring_module, "_LOOK_S", 0.001)
    reward = Held(sandboxes=1)
    async with scoring(reward) as scorer:
        scores = [scorer.submit(job) for job in jobs(1000)]
        await _held(reward, calls=4)
        reward.count = 40
        await _held(reward, calls=10)
        reward.free.set()
        await asyncio.gather(*scores)


async def test_a_service_that_does_not_say_its_sandboxes_is_called_all_the_same() -> None:
    class Silent(FakeReward):
        async def sandboxes(self) -> int:
            raise NotReady("restarting")

    async with scoring(Silent()) as scorer:
        assert (await scorer.submit(jobs(1)[0])).reward == 1.0


async def test_the_sandboxes_of_the_reward_service_are_those_of_all_its_running_replicas(
    monkeypatch,
) -> None:
    async def of_one() -> int:
        return 84

    handle = SimpleNamespace(sandboxes=SimpleNamespace(remote=of_one))
    states = {"a": "RUNNING", "b": "RUNNING", "c": "STARTING"}
    monkeypatch.setattr(peers.serve, "get_app_handle", lambda name: handle)
    monkeypatch.setattr(peers, "_states", lambda application, deployment: states)
    assert await peers.reward_peer().sandboxes() == 168
    states.clear()
    with pytest.raises(NotReady, match="which replicas"):
        await peers.reward_peer().sandboxes()


async def test_a_service_that_restarts_is_asked_again() -> None:
    reward = FakeReward()
    reward.not_ready = 4
    async with scoring(reward) as scorer:
        assert (await scorer.submit(jobs(1)[0])).reward == 1.0


async def test_a_service_that_stays_away_is_an_infrastructure_failure_not_a_reward() -> None:
    class Away(FakeReward):
        async def score(self, jobs: list[ScoreJob]) -> list[Score]:
            raise NotReady("nobody there")

    async with scoring(Away(), score_timeout_s=0.05) as scorer:
        got = await scorer.submit(jobs(1)[0])
    assert (got.reward, got.verdict) == (None, Verdict.INFRA_ERROR)
    assert "nobody there" in got.detail


async def test_a_call_that_hangs_ends_at_the_deadline() -> None:
    class Hangs(FakeReward):
        async def score(self, jobs: list[ScoreJob]) -> list[Score]:
            await asyncio.sleep(60)
            return []

    async with scoring(Hangs(), score_timeout_s=0.05) as scorer:
        assert (await scorer.submit(jobs(1)[0])).reward is None


async def test_a_missing_answer_and_a_broken_service_fail_only_their_jobs() -> None:
    class Odd(FakeReward):
        async def score(self, jobs: list[ScoreJob]) -> list[Score]:
            if jobs[0].job_id == "j0":
                raise TypeError("a defect")
            return [score(job, 1.0) for job in jobs[1:]]

    async with scoring(Odd(), score_batch=2) as scorer:
        got = await asyncio.gather(*(scorer.submit(job) for job in jobs(4)))
    assert [one.reward for one in got] == [None, None, None, 1.0]


async def test_a_full_queue_refuses_instead_of_growing() -> None:
    scorer = Scorer(FakeReward(), OrchestratorConfig(score_queue=2))
    futures = [scorer.submit(job) for job in jobs(3)]
    assert [future.done() for future in futures] == [False, False, True]
    assert futures[2].result().reward is None


async def test_jobs_that_die_with_two_replicas_are_an_infrastructure_failure() -> None:
    class Deadly(FakeReward):
        deaths = 0

        async def score(self, jobs: list[ScoreJob]) -> list[Score]:
            if any(job.completion == "deadly" for job in jobs):
                self.deaths += 1
                raise ReplicaLost("it died")
            return await super().score(jobs)

    reward = Deadly()
    async with scoring(reward, score_batch=1) as scorer:
        deadly = ScoreJob(job_id="deadly", completion="deadly", grader=GRADER)
        got, other = await asyncio.gather(scorer.submit(deadly), scorer.submit(jobs(1)[0]))
    assert (got.verdict, got.reward, reward.deaths) == (Verdict.INFRA_ERROR, None, 2)
    assert other.reward == 1.0


async def test_jobs_that_lose_one_replica_are_graded_by_the_next() -> None:
    class Unlucky(FakeReward):
        deaths = 0

        async def score(self, jobs: list[ScoreJob]) -> list[Score]:
            if not self.deaths:
                self.deaths += 1
                raise ReplicaLost("it died")
            return await super().score(jobs)

    async with scoring(Unlucky()) as scorer:
        assert (await scorer.submit(jobs(1)[0])).reward == 1.0
