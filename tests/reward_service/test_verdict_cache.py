import asyncio
import tracemalloc

import pytest

from services.protocol.reward.reward_service import CheckedTest, CompileRecord, Score, Verdict
from services.reward_service.grading.tools import (
    REMEMBERED,
    Estimates,
    VerdictCache,
    _bytes_of,
)


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
    cache, compute = VerdictCache(1 << 16), Computation(verdict)
    compute.may_end.set()
    assert await cache.grade("k", compute) == (grade(verdict), False)
    _, shared = await cache.grade("k", compute)
    assert shared == (verdict in REMEMBERED)
    assert compute.started == (1 if shared else 2)


def test_nothing_that_depends_on_the_machine_is_remembered() -> None:
    for verdict in (Verdict.INFRA_ERROR, Verdict.TIME_LIMIT, Verdict.CRASHED_SANDBOX):
        assert verdict not in REMEMBERED


async def test_the_least_recently_used_grade_is_forgotten() -> None:
    cache, compute = VerdictCache(2 * _bytes_of(grade())), Computation()
    compute.may_end.set()
    for key in ("a", "b", "a", "c"):
        await cache.grade(key, compute)
    assert len(cache) == 2
    assert (await cache.grade("a", compute))[1]
    assert not (await cache.grade("b", compute))[1]


async def test_identical_jobs_in_flight_run_once() -> None:
    cache, compute = VerdictCache(1 << 16), Computation(Verdict.TIME_LIMIT)
    tasks = [asyncio.create_task(cache.grade("k", compute)) for _ in range(5)]
    await compute.running.wait()
    compute.may_end.set()
    results = await asyncio.gather(*tasks)
    assert compute.started == 1
    assert sorted(shared for _, shared in results) == [False, True, True, True, True]


async def test_a_waiter_takes_over_when_the_first_is_cancelled() -> None:
    cache, compute = VerdictCache(1 << 16), Computation()
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
    cache = VerdictCache(1 << 16)

    async def fail() -> Score:
        raise OSError("broken")

    with pytest.raises(OSError, match="broken"):
        await cache.grade("k", fail)
    compute = Computation()
    compute.may_end.set()
    assert await cache.grade("k", compute) == (grade(), False)


def _large_grade(number: int, tests: int, characters: int) -> Score:
    """One that shares no object with another."""
    checked = (
        CheckedTest(
            test=1000 + test,
            verdict=Verdict.WRONG_ANSWER,
            cpu_ms=number + test / 3,
            wall_ms=number + test / 7,
            peak_kb=100_000 + number + test,
            output=f"{number} {test} ".ljust(characters, "x"),
            detail=f"{test} {number} ".ljust(characters, "\u20ac"),
        )
        for test in range(tests)
    )
    record = CompileRecord(
        ok=True, cpu_ms=number / 3, wall_ms=number / 7, cached=False, message=f"{number}"
    )
    return Score(
        verdict=Verdict.WRONG_ANSWER,
        reward=number / 11,
        passed=1000 + number,
        total=2000 + number,
        cpu_s=number / 13,
        detail=f"{number}",
        run=3000 + number,
        first_failure=4000 + number,
        tests=tuple(checked),
        compile=record,
    )


@pytest.mark.parametrize(("tests", "characters"), [(0, 0), (1, 20), (100, 10), (100, 200)])
async def test_the_cache_takes_the_memory_that_it_may_whatever_the_grades_hold(
    tests: int, characters: int
) -> None:
    max_bytes = 2 << 20
    cache = VerdictCache(max_bytes)
    one = _bytes_of(_large_grade(1, tests, characters))
    tracemalloc.start()
    try:
        for number in range(2 * max_bytes // one):

            async def compute(number: int = number) -> Score:
                return _large_grade(number, tests, characters)

            await cache.grade(f"{number:064d}", compute)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(cache) > 1
    assert max_bytes / 3 < held < 1.1 * max_bytes


async def test_a_grade_that_is_larger_than_the_cache_is_not_remembered() -> None:
    cache = VerdictCache(1 << 16)

    async def compute() -> Score:
        return _large_grade(1, 1000, 200)

    assert await cache.grade("k", compute) == (await compute(), False)
    assert len(cache) == 0


def test_what_is_learned_of_tests_takes_the_memory_that_it_may() -> None:
    """Of sets of many tests, of which each answer fails another."""
    max_bytes = 1 << 20
    seen = Estimates(max_bytes)
    tracemalloc.start()
    try:
        for number in range(100):
            for failed in range(1000):
                seen.learn(f"{number:064d}", "python", cpu_s=1.0, failed=failed)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert max_bytes / 3 < held < 1.2 * max_bytes
    assert sorted(seen.order(f"{99:064d}", 1000)) == list(range(1000))
