"""What operators ask of replicas, played against scripted ones."""

import asyncio
from dataclasses import replace

import pytest

from services.observability.metrics import BusMetrics
from services.protocol.errors import InvalidInput
from services.protocol.weights.replica_control import (
    ControlAction,
    ControlFailed,
    ControlOutcome,
    ControlReplica,
    Hold,
)
from services.protocol.weights.weight_bus import (
    CommitWeights,
    DropLinks,
    ReplicaState,
    StageWeights,
)

from .conftest import DEADLINE_S, Replica, World, hello, manifest

SOON_S = 0.02


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the bus counted as refused."""
    counted: list[str] = []
    monkeypatch.setattr(BusMetrics.refusals, "inc", lambda tags: counted.append(tags["what"]))
    return counted


def ask(
    world: World, action: str, level: int | None = None, replica: str = "r", timeout_s: float = 5.0
) -> "asyncio.Task[ControlOutcome]":
    return asyncio.create_task(world.bus.control(replica, action, level, timeout_s))


async def obey(
    replica: Replica,
    held: Hold,
    *,
    has_weights: bool = True,
    refusal: InvalidInput | None = None,
    error: str | None = None,
) -> ControlReplica:
    order = await replica.receive(ControlReplica)
    await replica.bus.report_control(
        ControlOutcome(
            replica_id=replica.id,
            control_id=order.control_id,
            held=held,
            has_weights=has_weights,
            refusal=refusal,
            error=error,
            seconds=0.5,
        )
    )
    return order


async def update(replica: Replica, version: int) -> StageWeights:
    order = await replica.receive(StageWeights)
    await replica.vote(order)
    await replica.receive(CommitWeights)
    await replica.committed(version)
    return order


async def test_a_paused_replica_has_no_lease_from_before_its_order_until_it_is_resumed(
    world: World,
) -> None:
    replica = await world.replica("r", committed_version=0)
    paused = ask(world, "pause")
    table = await world.until(lambda t: not t.leased)
    assert table.members[0].state is ReplicaState.PAUSED
    assert (await obey(replica, Hold.PAUSED)).action is ControlAction.PAUSE
    assert (await paused).held is Hold.PAUSED
    assert not (await world.table()).leased
    resumed = ask(world, "resume")
    await obey(replica, Hold.NONE)
    await resumed
    assert (await world.table()).leased


async def test_a_paused_replica_is_kept_up_to_date_and_stays_paused(world: World) -> None:
    await world.register_trainer()
    replica = await world.replica("r", committed_version=0)
    paused = ask(world, "pause")
    await obey(replica, Hold.PAUSED)
    await paused
    await world.bus.publish(manifest(1))
    await update(replica, 1)
    table = await world.until(lambda t: t.members[0].committed_version == 1)
    assert table.members[0].state is ReplicaState.PAUSED
    assert not table.leased


async def test_a_sleeping_replica_is_sent_nothing_until_it_wakes_up(world: World) -> None:
    await world.register_trainer()
    replica = await world.replica("r", committed_version=0)
    slept = ask(world, "sleep", 1)
    assert (await obey(replica, Hold.ASLEEP)).level == 1
    await slept
    await world.bus.publish(manifest(1))
    assert (await world.bus.next_orders("r", replica.acknowledged, SOON_S)).orders == ()
    awake = ask(world, "wake_up")
    await obey(replica, Hold.NONE)
    await awake
    assert (await world.table()).leased, "no staleness bound: what it kept may be served"
    await update(replica, 1)
    await world.until(lambda t: t.leased and t.leased[0].committed_version == 1)


async def test_a_replica_whose_weights_were_dropped_is_sent_everything_before_its_lease(
    world: World,
) -> None:
    await world.register_trainer()
    replica = await world.replica("r")
    await world.bus.publish(manifest(4))
    first = await update(replica, 4)
    await world.until(lambda t: bool(t.leased))
    slept = ask(world, "sleep", 2)
    assert (await obey(replica, Hold.ASLEEP, has_weights=False)).level == 2
    await slept
    awake = ask(world, "wake_up")
    await obey(replica, Hold.NONE, has_weights=False)
    await awake
    (row,) = (await world.table()).members
    assert (row.committed_version, row.leased) == (None, False)
    await replica.receive(DropLinks)
    again = await update(replica, 4)
    assert again.base is None
    assert again.links[0].prefix != first.links[0].prefix, "both ends carry an order out once"
    assert (await world.until(lambda t: bool(t.leased))).leased[0].committed_version == 4


@pytest.mark.parametrize(
    ("replica", "action", "level", "field", "fix"),
    [
        ("ghost", "pause", None, "replica", "Use one of: r."),
        ("r", "explode", None, "action", "abort, pause, resume"),
        ("r", "sleep", 3, "level", "1 .* or 2"),
        ("r", "pause", 1, "level", "leave it out"),
    ],
)
async def test_what_cannot_be_meant_is_refused_and_counted(
    world: World,
    refused: list[str],
    replica: str,
    action: str,
    level: int | None,
    field: str,
    fix: str,
) -> None:
    await world.replica("r", committed_version=0)
    with pytest.raises(InvalidInput, match=fix) as caught:
        await ask(world, action, level, replica)
    assert caught.value.field == field
    assert refused == ["control"]
    assert (await world.table()).leased


async def test_what_a_replica_cannot_do_is_refused_in_its_own_words_and_counted(
    world: World, refused: list[str]
) -> None:
    replica = await world.replica("r", committed_version=0)
    slept = ask(world, "sleep")
    no = InvalidInput("action", "sleep", "Only engines on GPUs can; use pause.")
    await obey(replica, Hold.NONE, refusal=no)
    with pytest.raises(InvalidInput, match="Only engines on GPUs"):
        await slept
    assert refused == ["control"]
    assert (await world.table()).leased, "it did not sleep"


async def test_nothing_hangs_a_replica_that_does_not_say_is_kept_without_a_lease(
    world: World,
) -> None:
    replica = await world.replica("r", committed_version=0)
    with pytest.raises(ControlFailed, match="has not said"):
        await ask(world, "pause", timeout_s=SOON_S)
    assert not (await world.table()).leased
    await obey(replica, Hold.NONE, error="too late")  # it says of itself that it runs
    assert (await world.table()).leased


async def test_nothing_hangs_a_replica_that_goes_ends_the_wait(world: World) -> None:
    replica = await world.replica("r", committed_version=0)
    paused = ask(world, "pause")
    await replica.receive(ControlReplica)
    await world.bus.leave("r")
    with pytest.raises(ControlFailed, match="is gone"):
        await asyncio.wait_for(paused, DEADLINE_S)


async def test_a_restarted_bus_gives_a_paused_replica_no_lease(world: World) -> None:
    await world.restart_bus()
    await world.bus.register_replica(replace(hello("r", 3), held=Hold.PAUSED))
    assert not (await world.table()).leased
