"""One replica's updates, played against scripted members."""

import asyncio
from dataclasses import replace

import pytest

from services.protocol.errors import InvalidInput
from services.protocol.weights.hello import TrainerHello
from services.protocol.weights.weight_bus import (
    CommitWeights,
    DropLinks,
    Phase,
    ReplicaState,
    SendWeights,
    StageWeights,
)

from .conftest import DEADLINE_S, Replica, World, manifest


async def deliver(world: World, replica: Replica, version: int) -> StageWeights:
    """Play an update in which everything goes well."""
    order = await replica.receive(StageWeights)
    assert order.manifest.version == version
    for rank, endpoint in enumerate(world.ranks):
        send = await endpoint.receive(SendWeights)
        assert send.link == order.links[rank]
        assert send.version == version
    await replica.vote(order)
    assert (await replica.receive(CommitWeights)).version == version
    await replica.committed(version)
    await world.until(lambda t: _row(t, replica).committed_version == version)
    return order


async def test_a_late_joiner_is_caught_up_before_its_lease(world: World) -> None:
    await world.register_trainer()
    await world.bus.publish(manifest(0))
    await world.bus.publish(manifest(1))
    replica = await world.replica("r")
    order = await replica.receive(StageWeights)
    assert order.manifest.version == 1
    assert _row(await world.table(), replica).state is ReplicaState.CATCHING_UP
    await replica.vote(order)
    await replica.receive(CommitWeights)
    assert (await world.table()).leased == ()
    await replica.committed(1)
    table = await world.until(lambda t: bool(t.leased))
    assert table.leased[0].committed_version == 1
    assert table.pushes == 1


async def test_a_version_becomes_visible_whole_or_not_at_all(world: World) -> None:
    await world.register_trainer()
    replica = await world.replica("r")
    await world.bus.publish(manifest(0))
    await deliver(world, replica, 0)
    await world.bus.publish(manifest(1))
    for failure in ("digest of bucket 0", "peer closed"):
        order = await replica.receive(StageWeights)
        for rank in world.ranks:
            await rank.receive(SendWeights)
        row = _row(await world.table(), replica)
        assert (row.state, row.committed_version, row.leased) == (ReplicaState.STAGING, 0, True)
        await replica.vote(order, failure)
        dropped = await replica.receive(DropLinks)
        assert all(link.prefix.startswith(dropped.prefix) for link in order.links)
        for rank in world.ranks:
            assert await rank.receive(DropLinks) == dropped
        row = _row(await world.table(), replica)
        assert (row.committed_version, row.leased) == (0, True), "the old version went away"
        assert failure in row.last_error
    await deliver(world, replica, 1)


async def test_the_table_says_which_model_the_weights_of_a_replica_were_trained_from(
    world: World,
) -> None:
    await world.register_trainer()
    replica = await world.replica("r", keeps_copy=True)
    for version, model in ((0, "models/old"), (1, "models/new")):
        await world.bus.publish(replace(manifest(version), model=model))
        before = _row(await world.table(), replica).trained_from
        assert before == ("" if version == 0 else "models/old"), "until the commit"
        await deliver(world, replica, version)
        assert _row(await world.table(), replica).trained_from == model
    unknown = await world.replica("s", committed_version=1)
    assert _row(await world.table(), unknown).trained_from == ""


async def test_links_are_kept_while_updates_succeed_and_never_used_again_after_a_failure(
    world: World,
) -> None:
    await world.register_trainer()
    replica = await world.replica("r")
    await world.bus.publish(manifest(0))
    first = await deliver(world, replica, 0)
    await world.bus.publish(manifest(1))
    order = await replica.receive(StageWeights)
    assert order.links == first.links
    await replica.vote(order, "broken")
    await replica.receive(DropLinks)
    again = await replica.receive(StageWeights)
    assert {link.prefix for link in again.links}.isdisjoint(link.prefix for link in first.links)


async def test_a_broken_sender_ends_the_update_without_waiting_for_the_vote(world: World) -> None:
    ranks = await world.register_trainer()
    replica = await world.replica("r")
    await world.bus.publish(manifest(0))
    await replica.receive(StageWeights)
    send = await ranks[1].receive(SendWeights)
    await ranks[1].report(
        Phase.SEND, 0, replica_id="r", prefix=send.link.prefix, error="connection reset"
    )
    await replica.receive(DropLinks)
    assert (await world.table()).leased == ()
    order = await replica.receive(StageWeights)
    await replica.vote(order)
    await replica.receive(CommitWeights)


async def test_a_replica_says_why_it_closed_the_links_that_its_senders_only_saw_closed(
    world: World,
) -> None:
    ranks = await world.register_trainer()
    replica = await world.replica("r")
    await world.bus.publish(manifest(0))
    order = await replica.receive(StageWeights)
    for rank, link in zip(ranks, order.links, strict=True):
        await rank.report(Phase.SEND, 0, replica_id="r", prefix=link.prefix, error="closed")
    await replica.vote(order, "digest of bucket 0")
    await replica.receive(DropLinks)
    assert (await world.table()).members[0].last_error == "stage: digest of bucket 0"


async def test_nothing_hangs_an_update_does_not_wait_for_a_trainer_that_was_replaced(
    world: World,
) -> None:
    await world.register_trainer("a")
    replica = await world.replica("r")
    await world.bus.publish(manifest(0))
    await replica.receive(StageWeights)
    ranks = await world.register_trainer("b")
    await replica.receive(DropLinks)
    order = await replica.receive(StageWeights)
    send = await ranks[0].receive(SendWeights)
    assert send.link == order.links[0]
    await replica.vote(order)
    await replica.receive(CommitWeights)


async def test_a_report_about_links_that_were_given_up_changes_nothing(world: World) -> None:
    await world.register_trainer()
    replica = await world.replica("r")
    await world.bus.publish(manifest(0))
    first = await replica.receive(StageWeights)
    await replica.vote(first, "broken")
    await replica.receive(DropLinks)
    second = await replica.receive(StageWeights)
    await replica.vote(first)
    await replica.vote(first, "late")
    await replica.vote(second)
    assert (await replica.receive(CommitWeights)).version == 0


async def test_a_replica_that_never_votes_loses_its_lease_until_it_has_the_version(
    impatient_world: World,
) -> None:
    world = impatient_world
    await world.register_trainer()
    replica = await world.replica("r", committed_version=0)
    assert (await world.table()).leased
    await world.bus.publish(manifest(1))
    table = await world.until(lambda t: not t.leased)
    assert "no report in" in table.members[0].last_error
    first = await replica.receive(StageWeights)
    assert first.links[0].prefix.startswith((await replica.receive(DropLinks)).prefix)
    await replica.receive(StageWeights)
    assert (await world.table()).leased == (), "a retry alone gave the lease back"


async def test_a_failed_commit_takes_the_lease_until_a_whole_resend_is_committed(
    world: World,
) -> None:
    await world.register_trainer()
    replica = await world.replica("r")
    await world.bus.publish(manifest(0))
    await deliver(world, replica, 0)
    await world.bus.publish(manifest(1))
    order = await replica.receive(StageWeights)
    await replica.vote(order)
    await replica.receive(CommitWeights)
    await replica.committed(1, "load failed half-way")
    table = await world.until(lambda t: not t.leased)
    assert table.members[0].state is ReplicaState.SUSPECT
    await replica.receive(DropLinks)
    for rank in world.ranks:
        await rank.receive(SendWeights)
        await rank.receive(DropLinks)
    resent = await replica.receive(StageWeights)
    assert (await world.table()).leased == (), "a torn replica has a lease"
    await replica.vote(resent)
    await replica.receive(CommitWeights)
    assert (await world.table()).leased == (), "a torn replica has a lease"
    await replica.committed(1)
    await world.until(lambda t: bool(t.leased))
    assert (await world.table()).leased[0].committed_version == 1


async def test_a_version_published_during_an_update_comes_next_and_skips_those_between(
    world: World,
) -> None:
    await world.register_trainer()
    replica = await world.replica("r")
    await world.bus.publish(manifest(0))
    order = await replica.receive(StageWeights)
    await world.bus.publish(manifest(1))
    await world.bus.publish(manifest(2))
    await replica.vote(order)
    assert (await replica.receive(CommitWeights)).version == 0
    await replica.committed(0)
    assert (await replica.receive(StageWeights)).manifest.version == 2


async def test_a_replica_that_fails_again_and_again_is_no_longer_in_service(world: World) -> None:
    await world.register_trainer()
    replica = await world.replica("r", committed_version=0)
    await world.bus.publish(manifest(1))
    states = []
    for _ in range(3):
        order = await replica.receive(StageWeights)
        states.append(_row(await world.table(), replica).state)
        await replica.vote(order, "no memory")
        await replica.receive(DropLinks)
    table = await world.until(lambda t: not t.leased)
    assert states == [ReplicaState.STAGING] * 3, "the lease went too early"
    assert _row(table, replica).state is ReplicaState.CATCHING_UP
    assert "no memory" in _row(table, replica).last_error
    order = await replica.receive(StageWeights)
    assert not (await world.table()).leased, "a retry alone gave the lease back"
    await replica.vote(order)
    await replica.receive(CommitWeights)
    await replica.committed(1)
    await world.until(lambda t: bool(t.leased))


async def test_a_trainer_of_another_size_takes_no_leases(world: World) -> None:
    await world.register_trainer()
    await world.bus.publish(manifest(1))
    lone = TrainerHello(member_id="b/0", group="b", rank=0, world_size=1)
    await world.bus.register_trainer(lone)
    replica = await world.replica("r", committed_version=0)
    assert (await world.bus.next_orders(replica.id, 0, 0.05)).orders == ()
    row = _row(await world.table(), replica)
    assert (row.leased, row.last_error) == (True, "")


async def test_a_delivery_survives_what_nobody_thought_of(world: World) -> None:
    failures = [RuntimeError("the store cannot listen"), KeyError("r")]
    store = world.store

    async def broken() -> tuple[str, int]:
        if failures:
            raise failures.pop()
        return await store()

    world.store = broken
    await world.register_trainer()
    replica = await world.replica("r")
    await world.bus.publish(manifest(0))
    for _ in range(2):
        await replica.receive(DropLinks)
        for rank in world.ranks:
            await rank.receive(DropLinks)
    await deliver(world, replica, 0)


async def test_a_replica_that_registers_again_gets_a_delivery_that_runs(world: World) -> None:
    await world.register_trainer()
    replica = await world.replica("r")
    _, task = world.bus._deliveries["r"]
    task.cancel()
    await asyncio.wait({task}, timeout=DEADLINE_S)
    await replica.register()
    await world.bus.publish(manifest(0))
    await deliver(world, replica, 0)


async def test_the_bus_waits_for_a_commit_as_long_as_the_replica_may_take(
    impatient_world: World,
) -> None:
    world = impatient_world
    await world.register_trainer()
    replica = await world.replica("r", commit_timeout_s=DEADLINE_S)
    await world.bus.publish(manifest(0))
    order = await replica.receive(StageWeights)
    await replica.vote(order)
    await replica.receive(CommitWeights)
    answer = await world.bus.next_orders(
        "r", replica.acknowledged, 5 * world.config.commit_margin_s
    )
    assert answer.orders == (), "the commit was given up within the replica's own deadline"
    await replica.committed(0)
    await world.until(lambda t: bool(t.leased))


async def test_a_commit_without_a_report_is_given_up_after_the_replicas_own_deadline(
    impatient_world: World,
) -> None:
    world = impatient_world
    await world.register_trainer()
    replica = await world.replica("r", commit_timeout_s=0.01)
    await world.bus.publish(manifest(0))
    order = await replica.receive(StageWeights)
    await replica.vote(order)
    await replica.receive(CommitWeights)
    await replica.receive(DropLinks)
    assert "commit: no report in 0.03 s" in _row(await world.table(), replica).last_error


async def test_replicas_are_updated_independently_of_one_that_stands_still(world: World) -> None:
    await world.register_trainer()
    still = await world.replica("still")
    quick = await world.replica("quick")
    await world.bus.publish(manifest(0))
    await still.receive(StageWeights)
    order = await quick.receive(StageWeights)
    await quick.vote(order)
    await quick.receive(CommitWeights)
    await quick.committed(0)
    table = await world.until(lambda t: bool(t.leased))
    assert [member.replica_id for member in table.leased] == ["quick"]


async def test_without_a_trainer_nothing_is_sent_and_leases_stay(world: World) -> None:
    await world.register_trainer()
    replica = await world.replica("r", committed_version=0)
    world.clock.now += world.config.heartbeat_timeout_s + 1
    await world.bus.next_orders("r", 0, 0.0)
    await world.bus.publish(manifest(1))
    answer = await world.bus.next_orders("r", 0, 0.0)
    assert answer.orders == ()
    table = await world.table()
    assert not table.trainer_ready
    assert table.leased
    await world.register_trainer("b")
    assert (await replica.receive(StageWeights)).manifest.version == 1


async def test_a_new_trainer_group_gets_links_of_its_own(world: World) -> None:
    await world.register_trainer("a")
    replica = await world.replica("r")
    await world.bus.publish(manifest(0))
    first = await deliver(world, replica, 0)
    await world.register_trainer("b")
    await world.bus.publish(manifest(1))
    assert (await replica.receive(DropLinks)).prefix
    second = await deliver(world, replica, 1)
    assert {link.prefix for link in first.links}.isdisjoint(link.prefix for link in second.links)


async def test_a_replica_that_dies_in_mid_update_is_given_up_and_the_trainer_told(
    world: World,
) -> None:
    ranks = await world.register_trainer()
    replica = await world.replica("r")
    await world.bus.publish(manifest(0))
    await replica.receive(StageWeights)
    send = await ranks[0].receive(SendWeights)
    world.clock.now += world.config.dead_after_s + 1
    await world.bus.expire()
    assert _row(await world.table(), replica).state is ReplicaState.DEAD
    dropped = await ranks[0].receive(DropLinks)
    assert send.link.prefix.startswith(dropped.prefix)
    assert not (await world.bus.next_orders("r", 0, 0.0)).known


async def test_versions_only_go_up(world: World) -> None:
    await world.bus.publish(manifest(3))
    for version in (3, 2):
        with pytest.raises(InvalidInput, match="publish a higher one"):
            await world.bus.publish(manifest(version))


def _row(table: object, replica: Replica) -> object:
    return next(m for m in table.members if m.replica_id == replica.id)  # type: ignore[attr-defined]
