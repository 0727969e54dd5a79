"""What the bus makes of the proofs of its deliveries."""

import asyncio
import math

import pytest

from services.protocol.weights.weight_bus import (
    CommitWeights,
    DistrustWeights,
    MemberTable,
    Order,
    Phase,
    ReplicaState,
    StageWeights,
)
from services.protocol.weights.weights import CanaryLogprobs
from services.weight_bus.config import WeightBusConfig

from .conftest import DEADLINE_S, SCORES, Replica, World, manifest


async def publish(world: World, version: int) -> None:
    """A version and what the trainer says of its canary."""
    await world.bus.publish(manifest(version, canary=True))
    await world.bus.publish_canary(version, SCORES)


async def commit(replica: Replica, version: int) -> None:
    """Play one update up to the commit's report."""
    await replica.vote(await next_of(replica, StageWeights))
    await next_of(replica, CommitWeights)
    await replica.committed(version)


async def next_of(replica: Replica, kind: type[Order]) -> Order:
    """The next order of a kind; orders to drop links in between are none of the test's."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            order = await replica.receive(Order)
            if isinstance(order, kind):
                return order


def is_leased(table: MemberTable) -> bool:
    return bool(table.leased)


async def test_a_late_joiner_is_leased_only_when_its_outputs_are_the_trainers(world: World) -> None:
    await world.register_trainer()
    await publish(world, 0)
    replica = await world.replica("r")
    await commit(replica, 0)
    assert not is_leased(await world.table())
    await replica.proved(0, gap=0.7)
    table = await world.until(lambda t: t.members[0].state is ReplicaState.SUSPECT)
    assert not is_leased(table)
    assert "0.7" in table.members[0].last_error
    await commit(replica, 0)
    await replica.proved(0, gap=1e-6)
    await world.until(is_leased)


async def test_a_late_joiner_that_gives_no_proof_is_sent_everything_again(world: World) -> None:
    await world.register_trainer()
    await publish(world, 0)
    replica = await world.replica("r")
    await commit(replica, 0)
    await replica.proved(0, gap=None, error="EngineDeadError")
    await commit(replica, 0)
    assert not is_leased(await world.table())


async def test_a_replica_in_service_keeps_its_lease_while_its_proof_waits(world: World) -> None:
    await world.register_trainer()
    replica = await world.replica("r", committed_version=0)
    await publish(world, 1)
    await commit(replica, 1)
    await world.until(lambda t: bool(t.leased) and t.leased[0].committed_version == 1)
    await replica.proved(1, gap=None, error="TimeoutError: full of requests")
    assert is_leased(await world.table())


async def test_a_replica_in_service_whose_outputs_are_wrong_loses_its_lease_until_they_are_right(
    world: World,
) -> None:
    await world.register_trainer()
    replica = await world.replica("r", committed_version=0)
    await publish(world, 1)
    await commit(replica, 1)
    await world.until(lambda t: bool(t.leased) and t.leased[0].committed_version == 1)
    await replica.proved(1, gap=3.0)
    await world.until(lambda t: not t.leased)
    assert await replica.receive(Order) == DistrustWeights(version=1)
    await commit(replica, 1)
    assert not is_leased(await world.table()), "a lease came back before the proof"
    await replica.proved(1, gap=0.0)
    await world.until(is_leased)


@pytest.mark.parametrize("canary", [True, False])
async def test_a_replica_whose_weights_are_not_as_sent_loses_its_lease_whatever_the_trainer_says(
    world: World, canary: bool
) -> None:
    await world.register_trainer()
    replica = await world.replica("r", committed_version=0)
    await world.bus.publish(manifest(1, canary=canary))
    await commit(replica, 1)
    await world.until(lambda t: bool(t.leased) and t.leased[0].committed_version == 1)
    await replica.report(Phase.CANARY, 1, not_as_sent="a.weight and 0 others")
    table = await world.until(lambda t: not t.leased)
    assert "a.weight" in table.members[0].last_error
    assert await replica.receive(Order) == DistrustWeights(version=1)
    await commit(replica, 1)
    assert not is_leased(await world.table()), "a lease came back before it was read back"


async def test_a_proof_of_a_version_that_is_gone_changes_nothing(world: World) -> None:
    await world.register_trainer()
    replica = await world.replica("r", committed_version=0)
    await publish(world, 1)
    await commit(replica, 1)
    await world.until(lambda t: bool(t.leased) and t.leased[0].committed_version == 1)
    await replica.proved(0, gap=3.0)
    assert is_leased(await world.table())


async def test_a_late_joiner_waits_for_the_trainers_answer_too(world: World) -> None:
    await world.register_trainer()
    await world.bus.publish(manifest(0, canary=True))
    replica = await world.replica("r")
    await commit(replica, 0)
    await replica.proved(0, gap=0.0)
    assert not is_leased(await world.table())
    await world.bus.publish_canary(0, SCORES)
    await world.until(is_leased)


@pytest.mark.parametrize("replaced", [True, False])
async def test_a_joiner_is_leased_without_scores_where_no_rank_can_give_them(
    replaced: bool,
) -> None:
    config = WeightBusConfig(
        retry_s=0.001, retry_max_s=0.002, stage_timeout_s=DEADLINE_S, commit_margin_s=0.5
    )
    world = World(config)
    await world.register_trainer("a")
    await world.bus.publish(manifest(0, canary=True), "a")
    replica = await world.replica("r")
    await commit(replica, 0)
    if replaced:
        await world.register_trainer("b")
    await replica.proved(0, gap=0.0)
    assert not is_leased(await world.table()), "they may come within the wait"
    table = await world.until(lambda t: is_leased(t) or bool(t.members[0].last_error))
    assert is_leased(table) is replaced
    await world.bus.close()


async def test_a_replica_in_service_is_judged_when_the_trainers_answer_comes(world: World) -> None:
    await world.register_trainer()
    replica = await world.replica("r", committed_version=0)
    await world.bus.publish(manifest(1, canary=True))
    await commit(replica, 1)
    await replica.proved(1, gap=3.0)
    await world.until(lambda t: bool(t.leased) and t.leased[0].committed_version == 1)
    await world.bus.publish_canary(1, SCORES)
    await world.until(lambda t: not t.leased)


@pytest.mark.parametrize("answer", [((math.nan,),), ((-1.0, -1.0),), ()])
async def test_an_answer_that_cannot_be_compared_is_a_wrong_one(
    world: World, answer: CanaryLogprobs
) -> None:
    await world.register_trainer()
    replica = await world.replica("r", committed_version=0)
    await publish(world, 1)
    await commit(replica, 1)
    await world.until(lambda t: bool(t.leased) and t.leased[0].committed_version == 1)
    await replica.report(Phase.CANARY, 1, canary_logprobs=answer)
    await world.until(lambda t: not t.leased)
