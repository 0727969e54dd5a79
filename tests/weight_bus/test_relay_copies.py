"""When a relay's memory may be written over, and who is given what it holds."""

from dataclasses import replace

import pytest

from services.protocol.errors import InvalidInput
from services.protocol.weights.weight_bus import (
    CommitWeights,
    Phase,
    ReplicaState,
    StageWeights,
)
from services.protocol.weights.weights import WeightManifest

from .conftest import Endpoint, Replica, World, manifest
from .test_relays import PLACE, RelayEnd, asks, relay


def other_bytes(one: WeightManifest) -> WeightManifest:
    """The version of another trainer that has the same number."""
    return replace(one, digests=(("2" * 64,), ("3" * 64,)))


async def dies(world: World, *others: Endpoint) -> None:
    """The bus hears of the others only, until it takes the rest for dead."""
    for _ in range(3):
        world.clock.now += world.config.heartbeat_timeout_s * 0.8
        for end in others:
            assert (await world.bus.next_orders(end.id, end.acknowledged, 0.0)).known
        await world.bus.expire()


async def frozen_before_its_commit(world: World) -> tuple[RelayEnd, Replica, StageWeights]:
    """A replica that mapped version 1, was ordered to load it, and is dead; its relay, and the
    relay's order to receive version 2."""
    ranks = await world.register_trainer()
    node = await relay(world, "n1")
    replica = await world.replica("r1", 0, memory_domain="n1")
    await world.bus.publish(manifest(1))
    await node.vote(await node.receive(StageWeights))
    await replica.receive(StageWeights)
    await replica.report(Phase.STAGE, 1)
    await world.until(lambda t: t.members[0].state is ReplicaState.COMMITTING)
    await dies(world, node, *ranks)
    assert (await world.table()).members[0].state is ReplicaState.DEAD
    await world.bus.publish(manifest(2))
    return node, replica, await node.receive(StageWeights)


@pytest.mark.parametrize("silence", ["dead_after_s", "forget_after_s"])
async def test_a_replica_that_thaws_finds_what_it_has_mapped_and_gets_the_newest_version_first(
    world: World, silence: str
) -> None:
    node, replica, order = await frozen_before_its_commit(world)
    if silence == "forget_after_s":
        await dies(world, node, *world.ranks)
        await dies(world, node, *world.ranks)
        assert (await world.table()).members == ()
    assert not order.in_place, "the replica may load what it has mapped when it thaws"
    await replica.register(0)
    replica.acknowledged = 0
    assert await asks(replica) == (), "it was ordered to commit the version before"
    (row,) = (await world.table()).members
    assert (row.state, row.leased) == (ReplicaState.CATCHING_UP, False)
    await node.vote(order)
    assert (await replica.receive(StageWeights)).manifest.version == 2
    await replica.report(Phase.STAGE, 2)
    assert (await replica.receive(CommitWeights)).version == 2
    await replica.committed(2)
    await world.until(lambda t: bool(t.leased))


async def test_a_replica_that_died_live_serves_at_once_when_it_is_back_where_nobody_can_send(
    world: World,
) -> None:
    replica = await world.replica("r1", 3, memory_domain="n1")
    await dies(world)
    assert (await world.table()).members[0].state is ReplicaState.DEAD
    await replica.register(3)
    (row,) = (await world.table()).members
    assert (row.state, row.leased) == (ReplicaState.LIVE, True)
    await dies(world)
    await replica.register(2)
    assert not (await world.table()).leased, "it serves another version than it did"


async def test_a_replica_that_never_comes_back_does_not_cost_its_relay_memory_for_ever(
    world: World,
) -> None:
    node, _, order = await frozen_before_its_commit(world)
    await node.vote(order)
    await world.bus.publish(manifest(3))
    assert (await node.receive(StageWeights)).in_place, "it has mapped other memory"


async def test_a_restarted_bus_does_not_know_who_reads_what_a_relay_holds(world: World) -> None:
    await world.register_trainer()
    node = await relay(world, "n1", copy=manifest(1))
    await world.bus.publish(manifest(2))
    order = await node.receive(StageWeights)
    assert not order.in_place
    await node.vote(order)
    await world.bus.publish(manifest(3))
    assert (await node.receive(StageWeights)).in_place


@pytest.mark.parametrize("registered", [("n0", "n1", "old"), ("old", "n0", "n1"), ("n1", "old")])
async def test_a_restarted_bus_gives_a_late_joiner_what_a_relay_holds_whoever_registered_first(
    world: World, registered: tuple[str, ...]
) -> None:
    held = {"n0": manifest(6), "n1": manifest(7)}
    for name in registered:
        if name == "old":
            await world.replica("old", committed_version=7, memory_domain="n1")
        else:
            await relay(world, name, copy=held[name])
    joiner = await world.replica("joiner", memory_domain="n1")
    order = await joiner.receive(StageWeights)
    assert (order.manifest, order.place) == (manifest(7), PLACE)


async def test_the_number_of_a_version_that_only_a_relay_holds_is_not_given_out_again(
    world: World,
) -> None:
    await relay(world, "n1", copy=manifest(1))
    assert (await world.table()).newest_version == 1
    with pytest.raises(InvalidInput, match="Version 1 exists"):
        await world.bus.publish(other_bytes(manifest(1)))
    (record,) = await world.bus.versions()
    assert record.digest == manifest(1).digest, "so the trainer sees that it is not its own"


async def test_a_replica_is_not_given_other_bytes_of_the_newest_number(world: World) -> None:
    await world.bus.publish(other_bytes(manifest(1)))
    node = await relay(world, "n1", copy=manifest(1))
    replica = await world.replica("r1", 0, memory_domain="n1")
    assert await asks(replica) == ()
    await world.register_trainer()
    await node.vote(await node.receive(StageWeights))
    assert (await replica.receive(StageWeights)).manifest == other_bytes(manifest(1))
