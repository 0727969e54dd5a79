"""kill -9 of replicas and of a router, with two hundred requests in flight."""

import pytest

from tests.chaos.front import Front

pytestmark = pytest.mark.asyncio(loop_scope="session")


KILLS = 5
"""On a busy machine a router may have read no token of all that a dead replica was answering."""


async def test_a_killed_replica_costs_no_call_and_no_token(front: Front) -> None:
    continued = 0
    for _ in range(KILLS):
        victim, _ = await front.make_whole()
        await front.begin()
        await front.in_the_middle_on(victim)
        front.scene.kill_replica(victim)
        continued += await front.same_answers()
        assert not front.retried
        if continued:
            return
    raise AssertionError(f"of {KILLS} replicas none died in the middle of an answer")


async def test_when_all_replicas_are_gone_calls_wait_for_others_and_go_on(front: Front) -> None:
    for _ in range(KILLS):
        await front.make_whole()
        gone = list(front.scene.replicas)
        await front.begin()
        for replica_id in gone:
            await front.in_the_middle_on(replica_id)
        for replica_id in gone:
            front.scene.kill_replica(replica_id)
        for _ in gone:
            front.scene.start_replica()
        continued = await front.same_answers()
        assert not front.retried
        if continued:
            return
    raise AssertionError(f"in {KILLS} times no replica died in the middle of an answer")


async def test_a_killed_router_costs_a_second_try_on_the_other_one_and_leaves_no_work(
    front: Front,
) -> None:
    await front.begin()
    for replica_id in front.scene.replicas:
        await front.in_the_middle_on(replica_id)
    front.kill_router(0)
    await front.same_answers()
    assert front.retried
