"""All replicas commit together, and nobody waits for one that is out of service."""

from collections.abc import AsyncIterator

import pytest

from services.protocol.weights.weight_bus import CommitWeights, DropLinks, StageWeights
from services.weight_bus.config import WeightBusConfig

from .conftest import DEADLINE_S, Replica, World, manifest


@pytest.fixture
async def world() -> AsyncIterator[World]:
    config = WeightBusConfig(
        commit="barrier",
        retry_s=0.001,
        retry_max_s=0.002,
        stage_timeout_s=DEADLINE_S,
        commit_margin_s=DEADLINE_S,
    )
    world = World(config)
    yield world
    await world.bus.close()


async def has_order(world: World, replica: Replica) -> bool:
    """Whether an order waits that the replica has not yet been given."""
    answer = await world.bus.next_orders(replica.id, replica.acknowledged, 0.02)
    return bool(answer.orders)


async def test_nobody_commits_before_everybody_in_service_has_staged(world: World) -> None:
    await world.register_trainer()
    first = await world.replica("first", committed_version=0)
    second = await world.replica("second", committed_version=0)
    await world.bus.publish(manifest(1))
    orders = [await one.receive(StageWeights) for one in (first, second)]
    await first.vote(orders[0])
    assert not await has_order(world, first), "it did not wait"
    await second.vote(orders[1])
    for one in (first, second):
        assert (await one.receive(CommitWeights)).version == 1
        await one.committed(1)
    await world.until(lambda t: [m.committed_version for m in t.leased] == [1, 1])


async def test_replicas_that_staged_different_versions_do_not_wait_for_each_other(
    world: World,
) -> None:
    await world.register_trainer()
    older = await world.replica("older", committed_version=0)
    newer = await world.replica("newer", committed_version=0)
    await world.bus.publish(manifest(1))
    order, broken = await older.receive(StageWeights), await newer.receive(StageWeights)
    await older.vote(order)
    await world.bus.publish(manifest(2))
    await newer.vote(broken, "peer closed")
    await newer.receive(DropLinks)
    await newer.vote(await newer.receive(StageWeights))
    assert (await older.receive(CommitWeights)).version == 1
    await older.committed(1)
    assert not await has_order(world, newer)
    await older.vote(await older.receive(StageWeights))
    for one in (older, newer):
        assert (await one.receive(CommitWeights)).version == 2


async def test_a_late_joiner_neither_waits_nor_is_waited_for(world: World) -> None:
    await world.register_trainer()
    old = await world.replica("old", committed_version=0)
    joiner = await world.replica("joiner")
    await world.bus.publish(manifest(1))
    orders = {one: await one.receive(StageWeights) for one in (old, joiner)}
    await joiner.vote(orders[joiner])
    assert (await joiner.receive(CommitWeights)).version == 1
    await old.vote(orders[old])
    assert (await old.receive(CommitWeights)).version == 1


async def test_a_replica_that_goes_silent_or_keeps_failing_opens_the_barrier(world: World) -> None:
    ranks = await world.register_trainer()
    good = await world.replica("good", committed_version=0)
    silent = await world.replica("silent", committed_version=0)
    failing = await world.replica("failing", committed_version=0)
    await world.bus.publish(manifest(1))
    order = await good.receive(StageWeights)
    await silent.receive(StageWeights)
    for _ in range(3):
        await failing.vote(await failing.receive(StageWeights), "peer closed")
        await failing.receive(DropLinks)
    await good.vote(order)
    assert not await has_order(world, good)
    world.clock.now += world.config.heartbeat_timeout_s + 1
    for member in (*ranks, good, failing):
        await world.bus.next_orders(member.id, member.acknowledged, 0.0)
    await world.bus.expire()
    assert (await good.receive(CommitWeights)).version == 1
