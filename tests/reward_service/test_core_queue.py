"""Cores are shared fairly between callers, and who leaves the queue leaves no trace."""

import asyncio

import pytest

from services.reward_service.sandbox.core_queue import CoreQueue, QueueFull, caller


async def work(queue: CoreQueue, who: str, estimate_s: float, done: list[str]) -> None:
    caller.set(who)
    async with queue.core(who, estimate_s):
        done.append(who)
        await asyncio.sleep(0)


async def test_callers_share_the_cores_by_work_whoever_came_first() -> None:
    queue = CoreQueue(cores=1, bound_s=100, wait_s=10)
    done: list[str] = []
    jobs = [("many", 1.0)] * 6 + [("few", 1.0)] * 2 + [("large", 3.0)]
    await asyncio.gather(*(work(queue, who, size, done) for who, size in jobs))
    # "many" held the core before the others came; from then on they take turns.
    assert done[0] == "many"
    assert sorted(done[1:5]) == ["few", "few", "many", "many"]
    assert done.index("large") < 7
    assert queue.queued_s == 0


async def test_who_gives_up_waiting_leaves_no_trace() -> None:
    queue = CoreQueue(cores=1, bound_s=1, wait_s=0.01)
    async with queue.core("work", 1.0):
        with pytest.raises(QueueFull, match="no core"):
            async with queue.core("long", 5.0):
                raise AssertionError("it cannot be had")
        waiting = asyncio.create_task(work(queue, "gone", 5.0, []))
        await asyncio.sleep(0)
        with pytest.raises(QueueFull) as full:
            queue.refuse_if_full()
        assert full.value.retry_after_s >= 1
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert queue.queued_s == 0
    async with queue.core("work", 1.0):
        queue.refuse_if_full()


async def test_the_oldest_work_in_the_queue_ages_though_nothing_changes() -> None:
    queue = CoreQueue(cores=1, bound_s=100, wait_s=10)
    async with queue.core("work", 1.0):
        assert (queue.waiting, queue.age_s) == (0, 0.0)
        waiting = asyncio.create_task(work(queue, "later", 1.0, []))
        await asyncio.sleep(0)
        before = queue.age_s
        assert queue.waiting == 1
        assert queue.age_s > before
    await waiting
    assert (queue.waiting, queue.age_s) == (0, 0.0)


async def test_what_waits_counts_for_what_work_of_its_kind_turned_out_to_take() -> None:
    queue = CoreQueue(cores=1, bound_s=100, wait_s=10)
    async with queue.core("short", 0.02):
        jobs = [("slow", 0.02)] * 3 + [("short", 0.02)]
        waiting = [asyncio.create_task(work(queue, who, size, [])) for who, size in jobs]
        await asyncio.sleep(0)
        assert queue.queued_s == pytest.approx(0.08)
        queue.revise("slow", 1.0)
        assert queue.queued_s == pytest.approx(3.02)
        waiting[0].cancel()
        await asyncio.wait(waiting[:1])
        assert queue.queued_s == pytest.approx(2.02)
        queue.revise("never seen", 50.0)
        assert queue.queued_s == pytest.approx(2.02)
    await asyncio.gather(*waiting[1:])
    assert queue.queued_s == 0


async def test_callers_who_had_their_turn_are_forgotten_though_others_wait() -> None:
    queue = CoreQueue(cores=1, bound_s=10_000, wait_s=10)
    async with queue.core("first", 1.0):
        waiting = asyncio.create_task(work(queue, "last", 5_000.0, []))
        await asyncio.sleep(0)
        guests = [asyncio.create_task(work(queue, f"guest {n}", 1.0, [])) for n in range(100)]
        await asyncio.sleep(0)
    await asyncio.gather(*guests[:90])
    assert queue.waiting > 0
    assert len(queue._finished) < 30
    await asyncio.gather(*guests, waiting)


async def test_work_that_was_cancelled_costs_its_caller_no_turn() -> None:
    """Whether it still waits, or its core is free in the moment in which it is cancelled."""
    queue = CoreQueue(cores=1, bound_s=10_000, wait_s=10)
    done: list[str] = []
    async with queue.core("first", 1.0):
        gone = [asyncio.create_task(work(queue, "back", 1.0, done)) for _ in range(100)]
        await asyncio.sleep(0)
        for task in gone[:90]:
            task.cancel()
        await asyncio.wait(gone[:90])
        for task in gone[90:]:
            task.cancel()
    await asyncio.wait(gone)
    assert done == []
    async with queue.core("first", 1.0):
        jobs = [asyncio.create_task(work(queue, "other", 1.0, done)) for _ in range(8)]
        await asyncio.sleep(0)
        jobs.append(asyncio.create_task(work(queue, "back", 1.0, done)))
        await asyncio.sleep(0)
    await asyncio.gather(*jobs)
    assert done.index("back") <= 1
    assert queue.queued_s == 0


async def test_an_estimate_is_taken_back_once() -> None:
    queue = CoreQueue(cores=1, bound_s=10_000, wait_s=10)
    done: list[str] = []
    async with queue.core("first", 1.0):
        jobs = [asyncio.create_task(work(queue, "back", 1.0, done)) for _ in range(8)]
        jobs += [asyncio.create_task(work(queue, "other", 1.0, done)) for _ in range(8)]
        await asyncio.sleep(0)
        for task in jobs[4:8]:
            task.cancel()
        await asyncio.wait(jobs[4:8])
        jobs.append(asyncio.create_task(work(queue, "back", 1.0, done)))
        await asyncio.sleep(0)
    await asyncio.gather(*jobs, return_exceptions=True)
    assert done[:8].count("back") == 4
    assert done[8:].count("back") == 1
