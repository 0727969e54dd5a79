"""From whom a replica gets a version, and onto what."""

from collections.abc import AsyncIterator

import pytest

from services.protocol.weights.weight_bus import (
    CommitWeights,
    DistrustWeights,
    DropLinks,
    ReplicaState,
    SendWeights,
    StageWeights,
    Transport,
)
from services.weight_bus.config import WeightBusConfig

from .conftest import DEADLINE_S, SCORES, Replica, World, manifest


@pytest.fixture
async def thrifty_world() -> AsyncIterator[World]:
    """Sends changes, and everything with versions 0, 4, 8..."""
    world = World(
        WeightBusConfig(
            delta_anchor_every=4,
            retry_s=0.001,
            retry_max_s=0.002,
            stage_timeout_s=DEADLINE_S,
            commit_margin_s=DEADLINE_S,
        )
    )
    yield world
    await world.bus.close()


async def finish(world: World, replica: Replica, order: StageWeights) -> None:
    """Play the rest of an update in which everything goes well."""
    version = order.manifest.version
    await replica.vote(order)
    await replica.receive(CommitWeights)
    await replica.committed(version)
    await world.until(
        lambda t: any(
            m.replica_id == replica.id and m.committed_version == version for m in t.leased
        )
    )


async def bases(world: World, order: StageWeights) -> list[int | None]:
    """Onto what the replica and each rank are told to work."""
    return [order.base, *[(await rank.receive(SendWeights)).base for rank in world.ranks]]


async def test_a_late_joiner_is_caught_up_from_a_peer_when_no_trainer_is_there(
    world: World,
) -> None:
    peer = await world.replica("peer", committed_version=5, keeps_copy=True)
    joiner = await world.replica("joiner")
    order = await joiner.receive(StageWeights)
    assert order.manifest == manifest(5)
    sends = [await peer.receive(SendWeights) for _ in range(2)]
    assert [send.link for send in sends] == list(order.links), "it stands in for every rank"
    await finish(world, joiner, order)
    dropped = await peer.receive(DropLinks)
    assert dropped.replica_id == "joiner", "a peer's links serve once"
    assert world.forgotten == [dropped.prefix]
    members = {m.replica_id: m for m in (await world.table()).members}
    assert members["peer"].state is ReplicaState.LIVE, "the peer was disturbed"


async def test_a_replica_without_a_copy_or_without_a_lease_is_no_peer(world: World) -> None:
    await world.replica("no-copy", committed_version=5)
    silent = await world.replica("silent", committed_version=5, keeps_copy=True)
    joiner = await world.replica("joiner")
    order = await joiner.receive(StageWeights)
    await silent.receive(SendWeights)
    await silent.receive(SendWeights)
    await joiner.vote(order, "peer closed")
    await joiner.receive(DropLinks)
    world.clock.now += world.config.heartbeat_timeout_s + 1
    await joiner.register()
    await world.bus.expire()
    answer = await world.bus.next_orders("joiner", joiner.acknowledged, 0.05)
    assert answer.orders == (), "a silent replica was taken for a peer"


async def test_a_trainer_that_no_longer_has_the_version_gives_way_to_a_peer(world: World) -> None:
    peer = await world.replica("peer", committed_version=5, keeps_copy=True)
    ranks = await world.register_trainer()
    joiner = await world.replica("joiner")
    order = await joiner.receive(StageWeights)
    await ranks[0].receive(SendWeights)
    await joiner.vote(order, "superseded")
    await joiner.receive(DropLinks)
    order = await joiner.receive(StageWeights)
    assert [(await peer.receive(SendWeights)).link for _ in range(2)] == list(order.links)
    await finish(world, joiner, order)


async def test_only_changes_are_sent_onto_what_the_replica_acknowledged(
    thrifty_world: World,
) -> None:
    world = thrifty_world
    await world.register_trainer()
    replica = await world.replica("r", keeps_copy=True)
    for version, base in [(0, None), (1, 0), (2, 1), (3, 2), (4, None), (5, 4)]:
        await world.bus.publish(manifest(version))
        order = await replica.receive(StageWeights)
        assert order.manifest.version == version
        assert await bases(world, order) == [base] * 3
        await finish(world, replica, order)


async def test_after_a_failure_everything_is_sent(thrifty_world: World) -> None:
    world = thrifty_world
    await world.register_trainer()
    replica = await world.replica("r", committed_version=1, keeps_copy=True)
    await world.bus.publish(manifest(2))
    order = await replica.receive(StageWeights)
    assert await bases(world, order) == [1] * 3
    await replica.vote(order, "digest of bucket 0 is not the manifest's")
    await replica.receive(DropLinks)
    for rank in world.ranks:
        await rank.receive(DropLinks)
    order = await replica.receive(StageWeights)
    assert await bases(world, order) == [None] * 3
    await finish(world, replica, order)


async def test_a_replica_without_a_copy_is_sent_everything(thrifty_world: World) -> None:
    world = thrifty_world
    await world.register_trainer()
    replica = await world.replica("r", committed_version=1)
    await world.bus.publish(manifest(2))
    assert await bases(world, await replica.receive(StageWeights)) == [None] * 3


async def test_a_replica_whose_outputs_are_wrong_is_sent_everything(thrifty_world: World) -> None:
    world = thrifty_world
    await world.register_trainer()
    replica = await world.replica("r", committed_version=1, keeps_copy=True)
    await world.bus.publish(manifest(2, canary=True))
    await world.bus.publish_canary(2, SCORES)
    order = await replica.receive(StageWeights)
    assert await bases(world, order) == [1] * 3
    await finish(world, replica, order)
    await replica.proved(2, gap=3.0)
    await replica.receive(DistrustWeights)
    dropped = await replica.receive(DropLinks)
    for rank in world.ranks:
        assert await rank.receive(DropLinks) == dropped, "a rank sends a version once over a link"
    again = await replica.receive(StageWeights)
    assert await bases(world, again) == [None] * 3
    assert again.links[0].prefix != order.links[0].prefix


def transports(order: StageWeights) -> set[Transport]:
    return {link.transport for link in order.links}


async def test_bytes_pass_through_memory_where_both_ends_share_it_and_over_the_wire_elsewhere(
    world: World,
) -> None:
    await world.register_trainer(memory_domain="node-1")
    near = await world.replica("near", memory_domain="node-1")
    far = await world.replica("far", memory_domain="node-2")
    await world.bus.publish(manifest(0))
    assert transports(await near.receive(StageWeights)) == {Transport.SHARED_MEMORY}
    assert transports(await far.receive(StageWeights)) == {Transport.GLOO}


async def test_gpus_of_different_nodes_use_nccl(world: World) -> None:
    await world.register_trainer(memory_domain="node-1", has_gpu=True)
    far = await world.replica("far", memory_domain="node-2", has_gpu=True)
    near = await world.replica("near", memory_domain="node-1", has_gpu=True)
    on_cpu = await world.replica("cpu", memory_domain="node-2")
    await world.bus.publish(manifest(0))
    assert transports(await far.receive(StageWeights)) == {Transport.NCCL}
    assert transports(await near.receive(StageWeights)) == {Transport.SHARED_MEMORY}
    assert transports(await on_cpu.receive(StageWeights)) == {Transport.GLOO}


async def test_two_members_that_may_have_one_gpu_do_not_use_nccl(world: World) -> None:
    """As in two containers of one machine: its boot is the same, its process tables are not."""
    await world.register_trainer(memory_domain="boot-1/pid:[1]/0", has_gpu=True)
    here = await world.replica("here", memory_domain="boot-1/pid:[2]/0", has_gpu=True)
    there = await world.replica("there", memory_domain="boot-2/pid:[1]/0", has_gpu=True)
    await world.bus.publish(manifest(0))
    assert transports(await here.receive(StageWeights)) == {Transport.GLOO}
    assert transports(await there.receive(StageWeights)) == {Transport.NCCL}


async def test_unknown_memory_is_nobodys(world: World) -> None:
    await world.register_trainer()
    replica = await world.replica("r")
    await world.bus.publish(manifest(0))
    assert transports(await replica.receive(StageWeights)) == {Transport.GLOO}


@pytest.mark.parametrize(
    ("domain", "has_gpu", "first"),
    [("node-1", False, Transport.SHARED_MEMORY), ("node-2", True, Transport.NCCL)],
)
async def test_what_failed_is_tried_over_tcp_and_the_next_version_goes_the_first_way_again(
    world: World, domain: str, has_gpu: bool, first: Transport
) -> None:
    ranks = await world.register_trainer(memory_domain="node-1", has_gpu=has_gpu)
    replica = await world.replica("r", memory_domain=domain, has_gpu=has_gpu)
    await world.bus.publish(manifest(0))
    failed = await replica.receive(StageWeights)
    assert transports(failed) == {first}
    await replica.vote(failed, error="RuntimeError: no transfer in 20 s")
    await replica.receive(DropLinks)
    order = await replica.receive(StageWeights)
    assert transports(order) == {Transport.GLOO}
    for rank in ranks:
        ordered = [await rank.receive(kind) for kind in (SendWeights, DropLinks, SendWeights)]
        assert [one.link.transport for one in ordered[::2]] == [first, Transport.GLOO]
    await finish(world, replica, order)
    await replica.receive(DropLinks)
    await world.bus.publish(manifest(1))
    assert transports(await replica.receive(StageWeights)) == {first}


async def test_memory_that_can_never_be_read_is_not_tried_for_ever(world: World) -> None:
    await world.register_trainer(memory_domain="node-1")
    replica = await world.replica("r", memory_domain="node-1")
    for version in range(3):
        await world.bus.publish(manifest(version))
        await replica.vote(await replica.receive(StageWeights), error="OSError: may not read")
        await replica.receive(DropLinks)
        await finish(world, replica, await replica.receive(StageWeights))
        await replica.receive(DropLinks)
    for version in range(3, 3 + 33):
        await world.bus.publish(manifest(version))
        order = await replica.receive(StageWeights)
        assert transports(order) == {Transport.GLOO}
        await finish(world, replica, order)
    await replica.receive(DropLinks)
    await world.bus.publish(manifest(36))
    order = await replica.receive(StageWeights)
    assert transports(order) == {Transport.SHARED_MEMORY}, "it may work by now"
    await replica.vote(order, error="OSError: may not read")
    await replica.receive(DropLinks)
    await finish(world, replica, await replica.receive(StageWeights))
    await replica.receive(DropLinks)
    await world.bus.publish(manifest(37))
    assert transports(await replica.receive(StageWeights)) == {Transport.GLOO}


async def test_a_peer_sends_over_the_wire(world: World) -> None:
    await world.replica("peer", committed_version=5, keeps_copy=True, memory_domain="node-1")
    joiner = await world.replica("joiner", memory_domain="node-1")
    assert transports(await joiner.receive(StageWeights)) == {Transport.GLOO}


@pytest.mark.parametrize("domain", ["node-1", "node-2"])
async def test_a_transport_that_is_set_is_used_or_refused(domain: str) -> None:
    config = WeightBusConfig(transport="shared_memory", retry_s=0.001, retry_max_s=0.002)
    world = World(config)
    await world.register_trainer(memory_domain="node-1")
    replica = await world.replica("r", memory_domain=domain)
    await world.bus.publish(manifest(0))
    if domain == "node-1":
        assert transports(await replica.receive(StageWeights)) == {Transport.SHARED_MEMORY}
    else:
        table = await world.until(lambda t: bool(t.members[0].last_error))
        assert "weight_bus.transport: shared_memory" in table.members[0].last_error
        assert "only gloo" in table.members[0].last_error
    await world.bus.close()
