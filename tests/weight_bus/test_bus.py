"""What members and watchers see of the bus."""

import asyncio
from dataclasses import replace

import pytest

from services.protocol.errors import InvalidInput
from services.protocol.weights.hello import TrainerHello
from services.protocol.weights.weight_bus import (
    CommitWeights,
    ReplicaState,
    SendWeights,
    StageWeights,
)
from services.weight_bus import bus as bus_module
from services.weight_bus.config import WeightBusConfig

from .conftest import World, manifest


async def test_no_lease_without_a_committed_version(world: World) -> None:
    await world.replica("fresh")
    await world.replica("serving", committed_version=4)
    table = await world.table()
    assert [member.replica_id for member in table.leased] == ["serving"]
    assert table.newest_version == 4


async def test_a_lag_bound_takes_leases_and_gives_them_back(world: World) -> None:
    await world.replica("r1", committed_version=1)
    await world.replica("r3", committed_version=3)
    await world.bus.bound_lag(1)
    assert [m.replica_id for m in (await world.table()).leased] == ["r3"]
    await world.bus.bound_lag(2)
    assert len((await world.table()).leased) == 2
    await world.bus.bound_lag(None)
    await world.bus.publish(manifest(99))
    assert len((await world.table()).leased) == 2
    with pytest.raises(InvalidInput, match="max_lag"):
        await world.bus.bound_lag(-1)


async def test_a_wish_for_replicas_reaches_them_and_is_forgotten_after_a_minute(
    world: World,
) -> None:
    await world.replica("r", committed_version=0)
    assert (await world.bus.next_orders("r", 0, 0.0)).wanted_replicas is None
    await world.bus.want_replicas(3)
    assert (await world.bus.next_orders("r", 0, 0.0)).wanted_replicas == 3
    world.clock.now += 61.0
    assert (await world.bus.next_orders("r", 0, 0.0)).wanted_replicas is None
    with pytest.raises(InvalidInput, match="replicas"):
        await world.bus.want_replicas(0)


async def test_a_silent_replica_loses_its_lease_then_dies_then_is_forgotten(world: World) -> None:
    replica = await world.replica("r", committed_version=0)
    states = []
    for silence_s in (
        world.config.heartbeat_timeout_s,
        world.config.dead_after_s,
        world.config.forget_after_s,
    ):
        world.clock.now = 1000.0 + silence_s + 0.1
        await world.bus.expire()
        table = await world.table()
        assert not table.leased
        states += [member.state for member in table.members]
    assert states == [ReplicaState.SUSPECT, ReplicaState.DEAD]
    assert not (await world.bus.next_orders(replica.id, 0, 0.0)).known


async def test_a_poll_renews_the_lease(world: World) -> None:
    await world.replica("r", committed_version=0)
    world.clock.now += world.config.heartbeat_timeout_s + 1
    assert not (await world.table()).leased
    await world.bus.next_orders("r", 0, 0.0)
    assert (await world.table()).leased


async def test_orders_come_again_until_they_are_acknowledged(world: World) -> None:
    await world.register_trainer()
    await world.replica("r")
    await world.bus.publish(manifest(0))
    lost = await world.bus.next_orders("r", 0, 1.0)
    again = await world.bus.next_orders("r", 0, 1.0)
    assert lost == again
    assert isinstance(again.orders[0], StageWeights)
    after = await world.bus.next_orders("r", again.last, 0.0)
    assert (after.known, after.orders, after.last) == (True, (), again.last)


async def test_a_poll_is_answered_as_soon_as_there_is_an_order(world: World) -> None:
    await world.register_trainer()
    await world.replica("r")
    poll = asyncio.create_task(world.bus.next_orders("r", 0, 600.0))
    await world.bus.publish(manifest(0))
    answer = await asyncio.wait_for(poll, 300)
    assert len(answer.orders) == 1


async def test_a_watcher_hears_of_a_change_at_once(world: World) -> None:
    table = await world.table()
    watch = asyncio.create_task(world.bus.watch(table.revision, 600.0))
    await world.replica("r")
    seen = await asyncio.wait_for(watch, 300)
    assert seen.revision > table.revision
    assert [member.replica_id for member in seen.members] == ["r"]


async def test_a_watcher_that_knew_a_bus_before_a_restart_is_answered_at_once(
    world: World,
) -> None:
    await world.replica("r")
    table = await world.table()
    await world.restart_bus()
    seen = await asyncio.wait_for(world.bus.watch(table.revision, 600.0), 300)
    assert seen.members == ()
    assert seen.revision != table.revision


async def test_a_restarted_bus_leases_what_its_members_still_serve(world: World) -> None:
    await world.register_trainer()
    replica = await world.replica("r")
    await world.bus.publish(manifest(7))
    order = await replica.receive(StageWeights)
    await replica.vote(order)
    await replica.receive(CommitWeights)
    await replica.committed(7)
    await world.until(lambda t: bool(t.leased))
    await world.restart_bus()
    assert not (await world.bus.next_orders("r", replica.acknowledged, 0.0)).known
    await world.replica("r", committed_version=7)
    table = await world.table()
    assert table.leased
    assert table.newest_version == 7
    with pytest.raises(InvalidInput):
        await world.bus.publish(manifest(6))
    # It has lost the manifest, so the trainer may say it again for those who join late.
    await world.bus.publish(manifest(7))
    await world.register_trainer()
    joiner = await world.replica("joiner")
    assert (await joiner.receive(StageWeights)).manifest.version == 7


async def test_a_restarted_bus_that_was_given_the_manifest_learns_who_can_score_it(
    world: World,
) -> None:
    await world.replica("r", committed_version=7, keeps_copy=True)
    await world.register_trainer("a")
    assert not world.bus._trainers.can_score
    with pytest.raises(InvalidInput, match="Version 7 exists"):
        await world.bus.publish(replace(manifest(7), digests=(("2" * 64,), ("3" * 64,))), "a")
    assert not world.bus._trainers.can_score, "these are other bytes"
    with pytest.raises(InvalidInput, match="Version 7 exists"):
        await world.bus.publish(manifest(7), "a")
    assert world.bus._trainers.can_score


async def test_ranks_of_an_older_group_get_no_orders_and_do_not_come_back(world: World) -> None:
    old = await world.register_trainer("old")
    new = await world.register_trainer("new")
    await world.bus.register_trainer(
        TrainerHello(member_id=old[0].id, group="old", rank=0, world_size=2)
    )
    await world.replica("r")
    await world.bus.publish(manifest(0))
    for rank in new:
        await rank.receive(SendWeights)
    answer = await world.bus.next_orders(old[0].id, 0, 0.0)
    assert answer.known
    assert answer.orders == ()


async def test_half_a_trainer_group_is_no_trainer(world: World) -> None:
    await world.bus.register_trainer(TrainerHello(member_id="a/0", group="a", rank=0, world_size=2))
    assert not (await world.table()).trainer_ready
    await world.bus.register_trainer(TrainerHello(member_id="a/1", group="a", rank=1, world_size=2))
    assert (await world.table()).trainer_ready
    with pytest.raises(InvalidInput, match="rank"):
        await world.bus.register_trainer(
            TrainerHello(member_id="a/2", group="a", rank=2, world_size=2)
        )


async def test_a_member_that_leaves_is_gone_at_once(world: World) -> None:
    await world.register_trainer()
    await world.replica("r", committed_version=0)
    await world.bus.leave("r")
    assert (await world.table()).members == ()
    assert not (await world.bus.next_orders("r", 0, 0.0)).known
    await world.bus.leave("a/0")
    assert not (await world.table()).trainer_ready


async def test_looking_for_silence_survives_what_nobody_thought_of(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bus_module, "_TICK_S", 0.001)
    await world.replica("r", committed_version=0)
    expire, failed = world.bus.expire, asyncio.Event()

    async def broken_once() -> None:
        world.bus.expire = expire
        failed.set()
        raise KeyError("r")

    world.bus.expire = broken_once
    world.bus.start()
    await asyncio.wait_for(failed.wait(), 300)
    world.clock.now += world.config.dead_after_s + 1
    table = await world.until(lambda t: t.members[0].state is ReplicaState.DEAD)
    assert not table.leased


async def test_a_replica_that_was_silent_through_everything_leaves_no_task(world: World) -> None:
    await world.replica("r", committed_version=0)
    _, task = world.bus._deliveries["r"]
    world.clock.now += world.config.forget_after_s + 1
    await world.bus.expire()
    assert task.done()
    assert world.bus._deliveries == {}


@pytest.mark.parametrize(
    "periods",
    [
        {"poll_s": 10.0},
        {"heartbeat_timeout_s": 21.0},
        {"dead_after_s": 60.0},
        {"forget_after_s": 15.0},
    ],
)
def test_deadlines_of_silence_that_contradict_each_other_are_refused(
    periods: dict[str, float],
) -> None:
    with pytest.raises(InvalidInput, match="poll_s < heartbeat_timeout_s <= dead_after_s"):
        WeightBusConfig.from_data(periods, source="weight_bus")
    WeightBusConfig(heartbeat_timeout_s=20.0, dead_after_s=20.0)
