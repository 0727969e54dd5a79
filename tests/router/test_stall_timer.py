"""The deadline of a stream's waits."""

import asyncio

import pytest

from services.http.event_stream import StallTimer


@pytest.fixture
async def stall_timer():
    expired = asyncio.Event()
    made = StallTimer(expired.set)
    made.expired = expired
    yield made
    made.close()


async def _expires(stall_timer):
    async with asyncio.timeout(300):
        await stall_timer.expired.wait()


async def test_a_wait_that_takes_too_long_expires(stall_timer):
    stall_timer.begin(0.01)
    await _expires(stall_timer)


async def test_a_shorter_wait_after_a_longer_one_expires_in_its_own_time(stall_timer):
    stall_timer.begin(1000)
    stall_timer.end()
    stall_timer.begin(0.01)
    await _expires(stall_timer)


async def test_a_longer_wait_after_a_shorter_one_is_given_its_time(stall_timer):
    stall_timer.begin(0.01)
    stall_timer.end()
    began = asyncio.get_running_loop().time()
    stall_timer.begin(0.05)
    await _expires(stall_timer)
    assert asyncio.get_running_loop().time() - began >= 0.05


async def test_time_between_waits_does_not_count(stall_timer):
    stall_timer.begin(0.01)
    stall_timer.end()
    other = asyncio.Event()
    asyncio.get_running_loop().call_later(0.03, other.set)
    await other.wait()
    assert not stall_timer.expired.is_set()
    stall_timer.begin(0.01)
    await _expires(stall_timer)
