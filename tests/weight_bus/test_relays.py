"""Relays of nodes: who feeds them, and what their replicas are told."""

import asyncio
from dataclasses import replace

import pytest

from services.observability.metrics import BusMetrics
from services.protocol.weights.hello import RelayHello
from services.protocol.weights.place import Place
from services.protocol.weights.weight_bus import (
    CommitWeights,
    DropLinks,
    Order,
    Phase,
    SendWeights,
    StageWeights,
)
from services.protocol.weights.weights import WeightManifest
from services.weight_bus.node_relays import RelayStarter

from .conftest import DEADLINE_S, Endpoint, World, manifest

PLACE = Place(pid=1, fd=2, inode=3, offset=0)


class RelayEnd(Endpoint):
    """A scripted relay; its node is named like it."""

    async def register(self, copy: WeightManifest | None = None) -> None:
        hello = RelayHello(relay_id=self.id, node_id=self.id, memory_domain=self.id)
        await self.bus.register_relay(replace(hello, copy=copy, place=PLACE if copy else None))

    async def vote(self, order: StageWeights, error: str | None = None) -> None:
        place = None if error else PLACE
        await self.report(
            Phase.STAGE,
            order.manifest.version,
            prefix=order.links[0].prefix,
            error=error,
            place=place,
        )


async def relay(world: World, name: str, copy: WeightManifest | None = None) -> RelayEnd:
    end = RelayEnd(world.bus, name)
    await end.register(copy)
    return end


async def test_a_replica_is_told_where_its_nodes_relay_holds_the_version(world: World) -> None:
    ranks = await world.register_trainer()
    node = await relay(world, "n1")
    replica = await world.replica("r1", memory_domain="n1")
    await world.bus.publish(manifest(1))
    order = await node.receive(StageWeights)
    assert [(await rank.receive(SendWeights)).link.replica_id for rank in ranks] == ["n1", "n1"]
    assert order.in_place, "nobody reads what it holds"
    assert replica.orders == [], "the version is not here yet"
    await node.vote(order)
    staged = await replica.receive(StageWeights)
    assert (staged.place, staged.links) == (PLACE, ())
    await replica.report(Phase.STAGE, 1)
    await replica.receive(CommitWeights)
    await replica.committed(1)
    await world.until(lambda table: table.members[0].committed_version == 1)


async def test_a_replica_that_lost_the_version_is_told_of_it_in_an_order_of_its_own(
    world: World,
) -> None:
    """An order that is delivered twice is carried out once; this one must not look like that."""
    await world.register_trainer()
    node = await relay(world, "n1")
    replica = await world.replica("r1", memory_domain="n1")
    await world.bus.publish(manifest(1))
    await node.vote(await node.receive(StageWeights))
    first = await replica.receive(StageWeights)
    await replica.report(Phase.STAGE, 1)
    await replica.receive(CommitWeights)
    await replica.committed(1, error="the load failed half-way")
    again = await replica.receive(StageWeights)
    assert (again.manifest, again.place) == (first.manifest, first.place)
    assert again != first


async def test_the_first_relay_feeds_the_second_while_it_receives(world: World) -> None:
    ranks = await world.register_trainer()
    first, second = await relay(world, "n1"), await relay(world, "n2")
    await world.bus.publish(manifest(1))
    await first.receive(StageWeights)
    sends = [await first.receive(SendWeights) for _ in ranks]
    assert [(send.link.replica_id, send.link.trainer_rank) for send in sends] == [
        ("n2", 0),
        ("n2", 1),
    ]
    await second.receive(StageWeights)
    for rank in ranks:
        assert (await rank.receive(SendWeights)).link.replica_id == "n1"
        assert rank.orders == [], "the trainer sends once"


async def chain_half_way(world: World) -> tuple[list[Endpoint], RelayEnd]:
    """Ranks that were told to send to a first relay, n1, and a second, n2, that it is to feed."""
    ranks = await world.register_trainer()
    first, second = await relay(world, "n1"), await relay(world, "n2")
    await world.bus.publish(manifest(1))
    await first.receive(StageWeights)
    for rank in ranks:
        await rank.receive(SendWeights)
    return ranks, second


async def test_a_relay_whose_sender_failed_is_fed_by_another(world: World) -> None:
    ranks, second = await chain_half_way(world)
    await second.vote(await second.receive(StageWeights), error="the sender is gone")
    await second.receive(DropLinks)
    again = await second.receive(StageWeights)
    sends = [await rank.receive(SendWeights) for rank in ranks]
    assert [send.link.prefix for send in sends] == [link.prefix for link in again.links]


@pytest.mark.parametrize("replaced", [True, False])
async def test_a_relay_does_not_wait_for_one_that_died_before_it_opened_a_link(
    world: World, replaced: bool
) -> None:
    ranks, second = await chain_half_way(world)
    order = await second.receive(StageWeights)
    if replaced:
        await world.bus.register_relay(RelayHello(relay_id="n1/2", node_id="n1", memory_domain=""))
    else:
        for _ in range(2):
            world.clock.now += world.config.dead_after_s * 0.6
            for end in (second, *ranks):
                await asks(end)
        await world.bus.expire()
    # Orders to drop the old relay's links, and to feed its successor, may come before these.
    again = await second.next_of(StageWeights)
    assert again.links[0].prefix != order.links[0].prefix
    sends = [await rank.next_of(SendWeights) for rank in ranks]
    assert [send.link.prefix for send in sends] == [link.prefix for link in again.links]


async def test_a_relay_keeps_a_version_until_the_next_one_has_it_and_then_skips_to_the_newest(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trainer that publishes faster than the network carries must not break the chain."""
    failed: list[str] = []
    monkeypatch.setattr(BusMetrics.failures, "inc", lambda tags: failed.append(tags["phase"]))
    await world.register_trainer()
    first, second = await relay(world, "n1"), await relay(world, "n2")
    await world.bus.publish(manifest(0))
    order, onward = await first.receive(StageWeights), await second.receive(StageWeights)
    await first.vote(order)
    for version in range(1, 20):
        await world.bus.publish(manifest(version))
    assert [(await first.receive(SendWeights)).version for _ in order.links] == [0, 0]
    assert (await world.bus.next_orders("n1", first.acknowledged, 0.05)).orders == ()
    await second.vote(onward)
    await second.receive(DropLinks)
    assert (await second.receive(StageWeights)).manifest.version == 19
    given = [await first.receive(Order) for _ in range(4)]
    assert [one.manifest.version for one in given if isinstance(one, StageWeights)] == [19]
    assert [one.version for one in given if isinstance(one, SendWeights)] == [19, 19]
    assert failed == []


async def test_a_relay_does_not_keep_a_version_for_one_that_is_silent(world: World) -> None:
    """A relay that died while its link was being opened breaks no connection."""
    ranks = await world.register_trainer()
    first, second = await relay(world, "n1"), await relay(world, "n2")
    await world.bus.publish(manifest(0))
    order = await first.receive(StageWeights)
    await second.receive(StageWeights)
    await first.vote(order)
    assert [(await first.receive(SendWeights)).version for _ in ranks] == [0, 0]
    await world.bus.publish(manifest(1))
    world.clock.now += world.config.heartbeat_timeout_s + 1
    await world.register_trainer()
    for end in (first, *ranks):
        assert (await world.bus.next_orders(end.id, end.acknowledged, 0.0)).known
    await world.bus.expire()
    assert (await first.receive(StageWeights)).manifest.version == 1


async def test_relays_take_the_version_of_the_one_before_them_and_not_a_newer_one(
    world: World,
) -> None:
    await world.register_trainer()
    first, second, third = [await relay(world, f"n{number}") for number in (1, 2, 3)]
    await world.bus.publish(manifest(0))
    orders = [await end.receive(StageWeights) for end in (first, second, third)]
    for end, order in zip((first, second), orders, strict=False):
        await end.vote(order)
        assert [(await end.receive(SendWeights)).version for _ in order.links] == [0, 0]
    for end in (first, second):
        await end.receive(DropLinks)
    await world.bus.publish(manifest(1))
    assert (await first.receive(StageWeights)).manifest.version == 1
    await world.bus.publish(manifest(2))
    await third.vote(orders[2])
    for end in (second, third):
        assert (await end.receive(DropLinks)).replica_id == "n3"
    given = [await second.receive(Order) for _ in range(3)]
    assert [one.manifest.version for one in given if isinstance(one, StageWeights)] == [1]
    assert (await third.receive(StageWeights)).manifest.version == 1


async def test_a_replica_loads_what_its_relay_holds_though_a_newer_version_is_published(
    world: World,
) -> None:
    await world.register_trainer()
    node = await relay(world, "n1")
    replica = await world.replica("r1", memory_domain="n1")
    await world.bus.publish(manifest(0))
    order = await node.receive(StageWeights)
    await world.bus.publish(manifest(1))
    await node.vote(order)
    staged = await replica.receive(StageWeights)
    assert (staged.manifest.version, staged.place) == (0, PLACE)
    assert not (await node.receive(StageWeights)).in_place, "it is being loaded"
    await replica.report(Phase.STAGE, 0)
    await replica.receive(CommitWeights)
    await replica.committed(0)
    await world.until(lambda table: table.members[0].committed_version == 0)


async def test_a_version_is_not_written_over_what_a_replica_loads(world: World) -> None:
    await world.register_trainer()
    node = await relay(world, "n1")
    replica = await world.replica("r1", memory_domain="n1")
    await world.bus.publish(manifest(1))
    await node.vote(await node.receive(StageWeights))
    await replica.receive(StageWeights)
    await world.bus.publish(manifest(2))
    assert not (await node.receive(StageWeights)).in_place


async def test_a_replica_receives_by_itself_where_the_relay_keeps_failing(world: World) -> None:
    await world.register_trainer()
    node = await relay(world, "n1")
    replica = await world.replica("r1", memory_domain="n1")
    await world.bus.publish(manifest(1))
    for _ in range(3):
        await node.vote(await node.receive(StageWeights), error="no memory")
        await node.receive(DropLinks)
    assert len((await replica.receive(StageWeights)).links) == 2


class Starts:
    """Starts relays; the first `failures` calls fail, and each waits until `may_end`."""

    def __init__(self, failures: int = 0) -> None:
        self.failures, self.asked, self.may_end = failures, asyncio.Queue[str](), asyncio.Event()

    async def start(self, node_id: str) -> None:
        self.asked.put_nowait(f"start {node_id}")
        await self.may_end.wait()
        self.failures -= 1
        if self.failures >= 0:
            raise RuntimeError("no answer from Ray")

    async def stop(self, node_id: str) -> None:
        self.asked.put_nowait(f"stop {node_id}")

    async def next(self) -> str:
        return await asyncio.wait_for(self.asked.get(), DEADLINE_S)


async def started(world: World, failures: int = 0) -> Starts:
    starts = Starts(failures)
    world.starter = RelayStarter(start=starts.start, stop=starts.stop)
    await world.restart_bus()
    return starts


async def test_the_bus_answers_while_ray_starts_a_relay(world: World) -> None:
    starts = await started(world)
    await world.replica("r1", node_id="n1")
    assert await starts.next() == "start n1"
    async with asyncio.timeout(DEADLINE_S):
        assert [one.replica_id for one in (await world.table()).members] == ["r1"]


async def test_a_relay_that_could_not_be_started_is_started_again(world: World) -> None:
    starts = await started(world, failures=1)
    starts.may_end.set()
    await world.replica("r1", node_id="n1")
    assert await starts.next() == "start n1"
    async with asyncio.timeout(DEADLINE_S):
        while starts.asked.empty():
            await world.bus.expire()
            await asyncio.sleep(0)
    assert await starts.next() == "start n1"
    await world.bus.expire()
    assert starts.asked.empty(), "it runs"


async def test_a_relay_on_a_node_without_replicas_ends(world: World) -> None:
    starts = await started(world)
    starts.may_end.set()
    await world.replica("r1", node_id="n1")
    assert await starts.next() == "start n1"
    await world.bus.leave("r1")
    world.clock.now += world.config.forget_after_s + 1
    await world.bus.expire()
    assert await starts.next() == "stop n1"


async def test_after_a_restart_of_the_bus_a_replica_that_serves_waits_for_its_relay(
    world: World,
) -> None:
    await started(world)
    await world.register_trainer()
    replica = await world.replica("r1", 0, memory_domain="n1", node_id="n1")
    await world.bus.publish(manifest(1))
    await world.bus.expire()
    node = await relay(world, "n1")
    await node.vote(await node.receive(StageWeights))
    staged = await replica.receive(StageWeights)
    assert (staged.place, staged.links) == (PLACE, ())


async def test_a_replica_whose_relay_does_not_come_back_receives_by_itself(world: World) -> None:
    await started(world)
    await world.register_trainer()
    replica = await world.replica("r1", 0, memory_domain="n1", node_id="n1")
    await world.bus.publish(manifest(1))
    world.clock.now += world.config.heartbeat_timeout_s
    assert len((await replica.receive(StageWeights)).links) == 2


async def asks(end: Endpoint) -> tuple[Order, ...]:
    """The bus hears of a member; what it is ordered within a moment."""
    answer = await end.bus.next_orders(end.id, end.acknowledged, 0.02)
    assert answer.known
    return answer.orders


@pytest.mark.parametrize("silence", ["heartbeat_timeout_s", "dead_after_s"])
async def test_replicas_of_a_node_that_was_cut_off_wait_for_its_relay(
    world: World, silence: str
) -> None:
    await started(world)
    node = await relay(world, "n1")
    replica = await world.replica("r1", 0, memory_domain="n1", node_id="n1")
    world.clock.now += getattr(world.config, silence) + 1
    await world.register_trainer()
    await world.bus.publish(manifest(1))
    await world.bus.expire()
    if silence == "dead_after_s":
        await replica.register(0)
    assert await asks(replica) == await asks(replica) == await asks(node) == ()
    await world.bus.expire()
    await node.vote(await node.receive(StageWeights))
    assert (await replica.receive(StageWeights)).place == PLACE


async def test_replicas_do_not_wait_for_a_relay_that_alone_is_silent(world: World) -> None:
    await started(world)
    await relay(world, "n1")
    replica = await world.replica("r1", 0, memory_domain="n1", node_id="n1")
    for _ in range(2):
        world.clock.now += world.config.heartbeat_timeout_s * 0.6
        assert await asks(replica) == ()
    await world.register_trainer()
    await world.bus.publish(manifest(1))
    assert len((await replica.receive(StageWeights)).links) == 2


async def test_ranks_that_have_not_published_are_not_asked_for_the_version_before_theirs(
    world: World,
) -> None:
    await world.register_trainer("a")
    node = await relay(world, "n1")
    replica = await world.replica("r1", memory_domain="n1")
    await world.bus.publish(manifest(1), "a")
    await node.receive(StageWeights)
    new = await world.register_trainer("b")
    await node.receive(DropLinks)
    assert [await asks(end) for end in (node, *new)] == [(), (), ()]
    await world.bus.publish(manifest(2), "b")
    await node.vote(await node.receive(StageWeights))
    assert (await replica.receive(StageWeights)).manifest.version == 2


async def test_failures_with_ranks_that_were_replaced_are_no_strikes_against_a_relay(
    world: World,
) -> None:
    await world.register_trainer("a")
    node = await relay(world, "n1")
    replica = await world.replica("r1", memory_domain="n1")
    for group, version, failures in (("a", 1, 2), ("b", 2, 2)):
        await world.register_trainer(group)
        await world.bus.publish(manifest(version), group)
        for _ in range(failures):
            await node.vote(await node.receive(StageWeights), error="connection reset")
            await node.receive(DropLinks)
    await node.vote(await node.receive(StageWeights))
    assert (await replica.receive(StageWeights)).place == PLACE
