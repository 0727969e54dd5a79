"""The deadline of a stream's waits."""

import asyncio

import pytest

from services.router.answering.patience import Patience


@pytest.fixture
async def patience():
    expired = asyncio.Event()
    made = Patience(expired.set)
    made.expired = expired
    yield made
    made.close()


async def _expires(patience):
    async with asyncio.timeout(60):
        await patience.expired.wait()


async def test_a_wait_that_takes_too_long_expires(patience):
    patience.begin(0.01)
    await _expires(patience)


async def test_a_shorter_wait_after_a_longer_one_expires_in_its_own_time(patience):
    patience.begin(1000)
    patience.end()
    patience.begin(0.01)
    await _expires(patience)


async def test_a_longer_wait_after_a_shorter_one_is_given_its_time(patience):
    patience.begin(0.01)
    patience.end()
    began = asyncio.get_running_loop().time()
    patience.begin(0.05)
    await _expires(patience)
    assert asyncio.get_running_loop().time() - began >= 0.05


async def test_time_between_waits_does_not_count(patience):
    patience.begin(0.01)
    patience.end()
    other = asyncio.Event()
    asyncio.get_running_loop().call_later(0.03, other.set)
    await other.wait()
    assert not patience.expired.is_set()
    patience.begin(0.01)
    await _expires(patience)
