"""Waiting for a change neither misses one nor leaves anything behind."""

import asyncio

from services.changes import Changes


async def test_every_waiter_hears_of_a_change_and_of_one_that_it_had_not_seen() -> None:
    changes = Changes()
    waiting = [asyncio.create_task(changes.after(changes.count, 60.0)) for _ in range(2)]
    await asyncio.wait(waiting, timeout=0.01)
    changes.notify()
    assert await asyncio.gather(*waiting) == [True, True]
    assert await changes.after(0, 60.0)
    assert not await changes.after(1, 0.01)


async def test_who_waits_no_more_is_forgotten() -> None:
    changes = Changes()
    assert not await changes.after(0, 0.01)
    cancelled = asyncio.create_task(changes.after(0, 60.0))
    await asyncio.wait({cancelled}, timeout=0.01)
    cancelled.cancel()
    await asyncio.gather(cancelled, return_exceptions=True)
    assert not changes._event._waiters
    changes.notify()
