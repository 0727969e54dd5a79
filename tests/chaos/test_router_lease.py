"""Replicas that may not serve any more, with two hundred requests in flight."""

import asyncio

import pytest

from tests.chaos.front import Front
from tests.chaos.mixture import REQUESTS
from tests.chaos.scene import READY_S

pytestmark = pytest.mark.asyncio(loop_scope="session")

BEFORE, LATER = slice(0, REQUESTS, 2), slice(1, REQUESTS, 2)


async def test_a_paused_replica_gives_its_calls_away_and_gets_others_when_it_is_resumed(
    front: Front,
) -> None:
    victim, _ = front.scene.replicas
    await front.begin()
    await front.in_the_middle_on(victim)
    # It has no time to end what it is in the middle of before it hears of the pause.
    with front.scene.frozen_engine(victim):
        pause = front.scene.bus.control(victim, "pause", None, READY_S)
        pausing = asyncio.create_task(pause)
        await front.until_leased(1)
    await pausing
    assert await front.same_answers()

    await front.scene.bus.control(victim, "resume", None, READY_S)
    await front.make_whole()
    await front.begin()
    await front.in_the_middle_on(victim)
    await front.same_answers()
    assert not front.retried


async def test_a_replica_that_is_sent_away_leaves_its_calls_to_the_others(front: Front) -> None:
    victim, _ = front.scene.replicas
    await front.begin()
    await front.in_the_middle_on(victim)
    # It has no time to end what it is in the middle of before it is heard to go.
    with front.scene.frozen_engine(victim):
        front.scene.send_away(victim)
        await front.until_leased(1)
    assert await front.same_answers()
    await front.scene.until_gone(victim, exitcode=0)
    assert not front.retried


async def test_without_a_bus_open_calls_end_well_and_new_ones_wait_for_its_leases(
    front: Front,
) -> None:
    await front.begin(BEFORE)
    await front.in_the_middle_on(next(iter(front.scene.replicas)))
    front.scene.kill_bus()
    await front.until_leased(0)
    await front.begin(LATER)
    front.scene.start_bus()
    await front.same_answers()
    assert not front.retried
