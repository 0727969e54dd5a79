"""Devices lent to the trainer and taken back, played by scripted replicas."""

import asyncio
from dataclasses import replace

import pytest

from services.observability.metrics import BusMetrics
from services.protocol.weights.replica_control import (
    ControlAction,
    ControlOutcome,
    ControlReplica,
    Hold,
)
from services.protocol.weights.weight_bus import (
    LOAN_S,
    CommitWeights,
    DropLinks,
    ReplicaState,
    StageWeights,
)

from .conftest import DEADLINE_S, Replica, World, hello, manifest


async def sharing(world: World, name: str, version: int | None = None, held=Hold.NONE) -> Replica:
    replica = Replica(world.bus, name)
    known = hello(name, version)
    await world.bus.register_replica(replace(known, devices=(f"gpu-{name}",), held=held))
    return replica


async def follow(
    replica: Replica, action: ControlAction, held: Hold, *, error: str | None = None
) -> None:
    order = await replica.receive(ControlReplica)
    assert order.action is action
    await replica.bus.report_control(
        ControlOutcome(
            replica_id=replica.id,
            control_id=order.control_id,
            held=held,
            has_weights=False,
            refusal=None,
            error=error,
            seconds=0.1,
        )
    )


async def lent(replica: Replica, error: str | None = None) -> None:
    await follow(replica, ControlAction.LEND_DEVICE, Hold.LENT, error=error)


async def taken(replica: Replica) -> None:
    await follow(replica, ControlAction.TAKE_DEVICE, Hold.NONE)


def lend(world: World, wait_s: float = DEADLINE_S) -> "asyncio.Task[tuple[str, ...]]":
    return asyncio.create_task(world.bus.lend_devices("a", wait_s))


async def test_a_loan_waits_for_every_replica_that_shares_and_for_no_other(world: World) -> None:
    first, second = await sharing(world, "r", 1), await sharing(world, "s", 1)
    await world.replica("own", 1)
    loan = lend(world)
    await lent(first)
    table = await world.until(lambda table: table.members[0].state is ReplicaState.LENT)
    assert [member.leased for member in table.members] == [False, False, True]
    assert not loan.done()
    await lent(second)
    assert await loan == ()


async def test_a_gauge_tells_how_many_replicas_are_lent(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int] = []
    monkeypatch.setattr(BusMetrics.lent, "set", told.append)
    replica = await sharing(world, "r", 1)
    await world.replica("own", 1)
    loan = lend(world)
    await lent(replica)
    await loan
    assert (max(told), told[-1]) == (1, 1)
    await world.bus.return_devices("a")
    await taken(replica)
    await world.until(lambda table: table.members[0].state is not ReplicaState.LENT)
    assert told[-1] == 0


async def test_a_returned_device_gets_the_newest_version_before_its_lease(world: World) -> None:
    replica = await sharing(world, "r", 1)
    await world.register_trainer()
    loan = lend(world)
    await lent(replica)
    await loan
    await world.bus.publish(manifest(2))
    await world.bus.return_devices("a")
    await taken(replica)
    order = await replica.receive(StageWeights)
    assert order.manifest.version == 2
    await replica.vote(order)
    await replica.receive(CommitWeights)
    await replica.committed(2)
    await world.until(lambda table: bool(table.leased))


async def test_a_replica_that_registers_during_a_loan_lends_its_device_too(world: World) -> None:
    assert await lend(world) == ()
    late = await sharing(world, "late")
    assert await world.bus.lend_devices("a", 0.0) == ("late",)
    await lent(late)
    assert await lend(world) == ()


async def test_an_order_that_failed_is_given_again(world: World) -> None:
    replica = await sharing(world, "r", 1)
    loan = lend(world)
    await lent(replica, error="OutOfMemory")
    async with asyncio.timeout(DEADLINE_S):
        while not (await world.bus.next_orders("r", replica.acknowledged, 0.0)).orders:
            world.clock.now += 1
            await world.bus.expire()
            await asyncio.sleep(0)
    assert not loan.done()
    await lent(replica)
    assert await loan == ()


async def test_a_device_that_could_not_be_taken_is_given_back_again(world: World) -> None:
    replica = await sharing(world, "r", 1)
    loan = lend(world)
    await follow(replica, ControlAction.LEND_DEVICE, Hold.ASLEEP)
    await loan
    await world.bus.return_devices("a")
    await follow(replica, ControlAction.TAKE_DEVICE, Hold.ASLEEP, error="another process has it")
    async with asyncio.timeout(DEADLINE_S):
        while not (await world.bus.next_orders("r", replica.acknowledged, 0.0)).orders:
            world.clock.now += 1
            await world.bus.expire()
            await asyncio.sleep(0)
    await follow(replica, ControlAction.TAKE_DEVICE, Hold.ASLEEP)


async def test_a_dead_replica_is_not_waited_for(world: World) -> None:
    await sharing(world, "r", 1)
    loan = lend(world)
    await asyncio.sleep(0)
    world.clock.now += world.config.dead_after_s + 1
    await world.bus.lend_devices("a", 0.0)  # still alive, by its word
    await world.bus.expire()
    assert await loan == ()


async def test_a_loan_ends_when_its_borrower_is_silent(world: World) -> None:
    replica = await sharing(world, "r", 1)
    loan = lend(world)
    await lent(replica)
    await loan
    world.clock.now += LOAN_S / 2
    await world.bus.lend_devices("a", 0.0)
    await world.bus.next_orders("r", replica.acknowledged, 0.0)
    world.clock.now += LOAN_S / 2 + 1
    await world.bus.next_orders("r", replica.acknowledged, 0.0)
    await world.bus.expire()
    assert not replica.orders, "the loan was repeated in time"
    world.clock.now += LOAN_S / 2
    await world.bus.next_orders("r", replica.acknowledged, 0.0)
    await world.bus.expire()
    await taken(replica)


async def test_a_borrower_that_was_replaced_does_not_end_the_loan_of_the_new_one(
    world: World,
) -> None:
    replica = await sharing(world, "r", 1)
    loan = lend(world)
    await lent(replica)
    await loan
    assert await world.bus.lend_devices("b", 0.0) == ()
    await world.bus.return_devices("a")
    assert await world.bus.lend_devices("b", 0.0) == ()
    await world.bus.return_devices("b")
    await taken(replica)


async def test_a_new_loan_waits_for_a_replica_that_is_taking_its_device(world: World) -> None:
    replica = await sharing(world, "r", 1)
    loan = lend(world)
    await lent(replica)
    await loan
    await world.bus.return_devices("a")
    again = lend(world)
    await taken(replica)
    assert not again.done()
    await lent(replica)
    assert await again == ()


async def test_a_restarted_bus_without_a_loan_has_lent_devices_taken_back(world: World) -> None:
    await sharing(world, "r", 1)
    await world.restart_bus()
    replica = await sharing(world, "r", None, Hold.LENT)
    await taken(replica)


async def test_a_restarted_bus_that_is_told_of_the_loan_first_leaves_devices_lent(
    world: World,
) -> None:
    await sharing(world, "r", 1)
    await world.restart_bus()
    await world.bus.lend_devices("a", 0.0)
    replica = await sharing(world, "r", None, Hold.LENT)
    assert await world.bus.lend_devices("a", 0.0) == ()
    assert not (await world.bus.next_orders("r", replica.acknowledged, 0.0)).orders


async def test_a_replica_that_an_operator_put_to_sleep_counts_as_free(world: World) -> None:
    replica = await sharing(world, "r", 1)
    loan = lend(world)
    await follow(replica, ControlAction.LEND_DEVICE, Hold.ASLEEP)
    assert await loan == ()
    await world.bus.return_devices("a")
    await follow(replica, ControlAction.TAKE_DEVICE, Hold.ASLEEP)
    table = await world.until(lambda table: table.members[0].state is ReplicaState.ASLEEP)
    assert not table.leased


async def test_a_loan_in_the_middle_of_an_update_is_no_failure_of_the_replica(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: list[str] = []
    monkeypatch.setattr(BusMetrics.failures, "inc", lambda tags: failed.append(tags["phase"]))
    replica = await sharing(world, "r")
    await world.register_trainer()
    await world.bus.publish(manifest(1))
    for _ in range(4):
        staged = await replica.receive(StageWeights)
        loan = lend(world)
        await lent(replica)
        await loan
        await replica.vote(staged, error="the engine sleeps")
        await world.until(lambda table: table.members[0].last_error.endswith("sleeps"))
        await replica.receive(DropLinks)
        await world.bus.return_devices("a")
        await taken(replica)
    order = await replica.receive(StageWeights)
    await replica.vote(order)
    await replica.receive(CommitWeights)
    await replica.committed(1)
    await world.until(lambda table: bool(table.leased))
    assert failed == []


async def test_a_loan_ends_the_wait_for_the_proof_of_a_replica_that_joins(world: World) -> None:
    replica = await sharing(world, "r")
    await world.register_trainer()
    await world.bus.publish(manifest(1, canary=True))
    for _ in range(2):
        await replica.vote(await replica.receive(StageWeights))
        await replica.receive(CommitWeights)
        await replica.committed(1)
        loan = lend(world)
        await lent(replica)
        await loan
        await replica.receive(DropLinks)
        await world.bus.return_devices("a")
        await taken(replica)
