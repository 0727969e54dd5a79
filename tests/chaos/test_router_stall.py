"""Replicas that freeze, crawl or fail at once, with two hundred requests in flight."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.chaos.front import STALL_S, Front
from tests.chaos.impostor import Impostor
from tests.chaos.mixture import REQUESTS
from tests.chaos.scene import READY_S, Scene

pytestmark = pytest.mark.asyncio(loop_scope="session")

FEW = slice(0, REQUESTS, 5)


async def test_a_frozen_replica_costs_no_call_and_serves_again_when_it_thaws(
    front: Front,
) -> None:
    victim, _ = front.scene.replicas
    await front.begin()
    await front.in_the_middle_on(victim)
    front.scene.freeze(front.scene.replicas[victim].pid)
    assert await front.same_answers()
    await front.scene.until(
        lambda table: all(one.replica_id != victim for one in table.leased),
        "the frozen replica has lost its lease",
    )

    front.scene.thaw(front.scene.replicas[victim].pid)
    await front.make_whole()
    await front.begin()
    await front.in_the_middle_on(victim)
    await front.same_answers()


async def test_a_replica_that_crawls_costs_no_call(front: Front) -> None:
    victim, _ = front.scene.replicas
    async with _crawling(front.scene, victim):
        await front.begin()
        await front.in_the_middle_on(victim)
        await front.same_answers()
    assert not front.retried


async def test_a_replica_that_fails_at_once_attracts_few_calls_and_costs_none(
    front: Front,
) -> None:
    like = await front.scene.member(next(iter(front.scene.replicas)))
    async with Impostor().opened(front.scene.bus, like) as impostor:
        await front.until_leased(len(front.scene.replicas) + 1)
        await front.begin()
        assert await impostor.has_refused(1, READY_S)
        await front.same_answers()
        refused = impostor.refused
        # All that were placed before the first one failed, and then no more than probes.
        assert refused < REQUESTS
        await front.begin(FEW)
        await front.same_answers()
        assert impostor.refused - refused < len(range(REQUESTS)[FEW])


@asynccontextmanager
async def _crawling(scene: Scene, replica_id: str) -> AsyncIterator[None]:
    """The replica stands still three quarters of the time, never as long as a stall."""
    pid = scene.replicas[replica_id].pid

    async def crawl() -> None:
        while True:
            scene.freeze(pid)
            await asyncio.sleep(STALL_S / 10)
            scene.thaw(pid)
            await asyncio.sleep(STALL_S / 30)

    task = asyncio.create_task(crawl())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        scene.thaw(pid)
