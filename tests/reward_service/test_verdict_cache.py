import asyncio

import pytest

from services.protocol.reward.reward_service import Score, Verdict
from services.reward_service.grading.tools import REMEMBERED, VerdictCache


def grade(verdict: Verdict = Verdict.ACCEPTED) -> Score:
    return Score(verdict=verdict, reward=1.0, passed=1)


class Computation:
    """Counts its starts and ends when told."""

    def __init__(self, verdict: Verdict = Verdict.ACCEPTED) -> None:
        self.started, self.may_end = 0, asyncio.Event()
        self.running = asyncio.Event()
        self._verdict = verdict

    async def __call__(self) -> Score:
        self.started += 1
        self.running.set()
        await self.may_end.wait()
        return grade(self._verdict)


@pytest.mark.parametrize("verdict", list(Verdict))
async def test_only_verdicts_that_would_repeat_are_remembered(verdict: Verdict) -> None:
    cache, compute = VerdictCache(8), Computation(verdict)
    compute.may_end.set()
    assert await cache.grade("k", compute) == (grade(verdict), False)
    _, shared = await cache.grade("k", compute)
    assert shared == (verdict in REMEMBERED)
    assert compute.started == (1 if shared else 2)


def test_nothing_that_depends_on_the_machine_is_remembered() -> None:
    for verdict in (Verdict.INFRA_ERROR, Verdict.TIME_LIMIT, Verdict.CRASHED_SANDBOX):
        assert verdict not in REMEMBERED


async def test_the_least_recently_used_grade_is_forgotten() -> None:
    cache, compute = VerdictCache(2), Computation()
    compute.may_end.set()
    for key in ("a", "b", "a", "c"):
        await cache.grade(key, compute)
    assert len(cache) == 2
    assert (await cache.grade("a", compute))[1]
    assert not (await cache.grade("b", compute))[1]


async def test_identical_jobs_in_flight_run_once() -> None:
    cache, compute = VerdictCache(8), Computation(Verdict.TIME_LIMIT)
    tasks = [asyncio.create_task(cache.grade("k", compute)) for _ in range(5)]
    await compute.running.wait()
    compute.may_end.set()
    results = await asyncio.gather(*tasks)
    assert compute.started == 1
    assert sorted(shared for _, shared in results) == [False, True, True, True, True]


async def test_a_waiter_takes_over_when_the_first_is_cancelled() -> None:
    cache, compute = VerdictCache(8), Computation()
    first = asyncio.create_task(cache.grade("k", compute))
    await compute.running.wait()
    second = asyncio.create_task(cache.grade("k", compute))
    third = asyncio.create_task(cache.grade("k", compute))
    await asyncio.sleep(0)
    first.cancel()
    third.cancel()
    compute.may_end.set()
    assert await asyncio.wait_for(second, 300) == (grade(), False)
    assert first.cancelled() or await asyncio.wait({first})
    assert compute.started == 2


async def test_a_failure_reaches_only_its_own_caller() -> None:
    cache = VerdictCache(8)

    async def fail() -> Score:
        raise OSError("broken")

    with pytest.raises(OSError, match="broken"):
        await cache.grade("k", fail)
    compute = Computation()
    compute.may_end.set()
    assert await cache.grade("k", compute) == (grade(), False)
