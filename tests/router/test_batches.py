"""Items that come together."""

import asyncio

import pytest

from services.router.answering.streams import batched


def _no_pause():
    return 0.0


async def _burst(count, *, then=None):
    for number in range(count):
        yield number
    if then is not None:
        raise then


async def test_what_came_meanwhile_comes_together_and_in_order():
    seen = [batch async for batch in batched(_burst(1000), _no_pause)]
    assert [item for batch in seen for item in batch] == list(range(1000))
    assert len(seen) < 100


async def test_an_item_alone_is_not_kept_waiting_for_others():
    taken = asyncio.Event()

    async def one_by_one():
        for number in range(3):
            taken.clear()
            yield number
            await taken.wait()

    async for batch in batched(one_by_one(), _no_pause):
        assert len(batch) == 1
        taken.set()


async def test_an_error_comes_after_the_items_before_it():
    seen = []

    async def read():
        async for batch in batched(_burst(3, then=ValueError("broken")), _no_pause):
            seen.extend(batch)

    with pytest.raises(ValueError, match="broken"):
        await read()
    assert seen == [0, 1, 2]


async def test_who_leaves_early_closes_the_source():
    closed = asyncio.Event()

    async def endless():
        try:
            while True:
                yield 1
        finally:
            closed.set()

    batches = batched(endless(), _no_pause)
    await anext(batches)
    await batches.aclose()
    assert closed.is_set()
