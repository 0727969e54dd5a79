"""Links over several network interfaces, and interfaces that a node lacks."""

from collections.abc import AsyncIterator

import pytest
from pydantic import ValidationError

from services.observability.metrics import BusMetrics
from services.protocol.errors import InvalidInput
from services.protocol.weights.weight_bus import CommitWeights, SendWeights, StageWeights
from services.weight_bus.config import WeightBusConfig
from services.weight_bus.delivery.interfaces import stripes_for

from .conftest import DEADLINE_S, Endpoint, Replica, World, manifest

HERE = ("eth0", "eth1", "eth2", "lo")


def config(*interfaces: str) -> WeightBusConfig:
    return WeightBusConfig(
        interfaces=interfaces,
        retry_s=0.001,
        retry_max_s=0.002,
        stage_timeout_s=DEADLINE_S,
        commit_margin_s=DEADLINE_S,
    )


@pytest.fixture
async def two() -> AsyncIterator[World]:
    world = World(config("eth0", "eth1"))
    yield world
    await world.bus.close()


@pytest.fixture
async def three() -> AsyncIterator[World]:
    world = World(config("eth0", "eth1", "eth2"))
    yield world
    await world.bus.close()


@pytest.fixture
def refusals(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    seen: list[str] = []
    monkeypatch.setattr(BusMetrics.refusals, "inc", lambda tags: seen.append(tags["what"]))
    monkeypatch.setattr(BusMetrics.failures, "inc", lambda tags: seen.append(tags["phase"]))
    return seen


async def serve(replica: Replica, order: StageWeights) -> None:
    await replica.vote(order)
    await replica.receive(CommitWeights)
    await replica.committed(order.manifest.version)


async def is_to_transfer(member: Endpoint) -> bool:
    """Whether the bus has ordered it to send or to receive."""
    orders = (await member.bus.next_orders(member.id, member.acknowledged, 0.05)).orders
    return any(isinstance(one, SendWeights | StageWeights) for one in orders)


async def test_ranks_take_the_interfaces_in_turn(two: World) -> None:
    ranks = await two.register_trainer(interfaces=HERE)
    replica = await two.replica("r")
    await two.bus.publish(manifest(0))
    order = await replica.receive(StageWeights)
    assert [(link.interface, link.stripes) for link in order.links] == [("eth0", 1), ("eth1", 1)]
    sends = [(await rank.receive(SendWeights)).link for rank in ranks]
    assert sends == list(order.links), "both ends use the same one"


async def test_a_rank_has_a_link_for_each_interface_that_would_carry_less(three: World) -> None:
    ranks = await three.register_trainer(interfaces=HERE)
    replica = await three.replica("r")
    await three.bus.publish(manifest(0))
    order = await replica.receive(StageWeights)
    found = [(link.trainer_rank, link.stripe, link.stripes, link.interface) for link in order.links]
    assert found == [
        (0, 0, 3, "eth0"),
        (0, 1, 3, "eth1"),
        (0, 2, 3, "eth2"),
        (1, 0, 3, "eth0"),
        (1, 1, 3, "eth1"),
        (1, 2, 3, "eth2"),
    ]
    assert len({link.prefix for link in order.links}) == 6
    for number, rank in enumerate(ranks):
        sends = [(await rank.receive(SendWeights)).link for _ in range(3)]
        assert sends == list(order.links[3 * number : 3 * number + 3])


def test_every_interface_is_used_by_as_many_links() -> None:
    for senders in range(1, 9):
        for interfaces in range(1, 9):
            assert senders * stripes_for(senders, interfaces) % interfaces == 0
    assert stripes_for(8, 0) == stripes_for(8, 4) == 1


async def test_an_interface_that_a_node_lacks_is_refused_at_publish_and_the_old_version_serves_on(
    two: World, refusals: list[str]
) -> None:
    await two.register_trainer(interfaces=HERE)
    replica = await two.replica("r")
    await two.bus.publish(manifest(0))
    await serve(replica, await replica.receive(StageWeights))
    await two.until(lambda table: bool(table.leased))
    replica.interfaces = ("eno1", "eth0", "lo")
    await replica.register(committed_version=0)
    with pytest.raises(InvalidInput, match="node of r has eno1, eth0, lo") as caught:
        await two.bus.publish(manifest(1))
    assert (caught.value.field, caught.value.value) == ("interfaces", "eth1")
    assert "weight_bus.interfaces" in caught.value.fix
    assert refusals == ["publish_interfaces"]
    assert not await is_to_transfer(replica)
    assert [one.committed_version for one in (await two.table()).leased] == [0]
    await two.register_trainer("b", interfaces=("eth0", "lo"))
    with pytest.raises(InvalidInput, match="node of b/0 has eth0, lo"):
        await two.bus.publish(manifest(1))
    assert (await two.table()).newest_version == 0


async def test_a_joiner_without_the_interface_is_named_and_gets_no_lease_and_others_go_on(
    two: World, refusals: list[str]
) -> None:
    ranks = await two.register_trainer(interfaces=HERE)
    replica = await two.replica("r")
    await two.bus.publish(manifest(0))
    await serve(replica, await replica.receive(StageWeights))
    for rank in ranks:
        await rank.receive(SendWeights)
    await two.replica("joiner", interfaces=("eth0", "lo"))
    table = await two.until(lambda table: any(one.last_error for one in table.members))
    (joiner,) = (one for one in table.members if one.replica_id == "joiner")
    assert "interfaces: 'eth1' is not usable. The node of joiner has eth0, lo" in joiner.last_error
    assert set(refusals) == {"stage"}
    assert not any([await is_to_transfer(rank) for rank in ranks])
    await two.bus.publish(manifest(1))
    assert (await replica.receive(StageWeights)).manifest.version == 1


@pytest.mark.parametrize("names", [["eth0", "eth0"], [""]])
def test_a_list_of_interfaces_with_no_sense_is_refused(names: list[str]) -> None:
    with pytest.raises(ValidationError, match="must be different names"):
        WeightBusConfig.model_validate({"interfaces": names})


def test_nccl_is_refused_where_relays_are_to_hold_versions_in_host_memory() -> None:
    with pytest.raises(ValidationError, match="set relays: false"):
        WeightBusConfig(transport="nccl")
    assert WeightBusConfig(transport="nccl", relays=False).transport == "nccl"
