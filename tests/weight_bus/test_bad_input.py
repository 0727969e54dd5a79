"""What the bus refuses: named, counted, and what is served stays as it is."""

from dataclasses import replace

import pytest

from services.observability.metrics import BusMetrics
from services.protocol.errors import InvalidInput
from services.protocol.weights.weight_bus import (
    CommitWeights,
    DropLinks,
    Phase,
    Report,
    StageWeights,
)
from services.protocol.weights.weights import Dtype, TensorSpec, WeightManifest

from .conftest import Replica, World, manifest


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the bus refused or dropped."""
    seen: list[str] = []
    monkeypatch.setattr(BusMetrics.refusals, "inc", lambda tags: seen.append(tags["what"]))
    monkeypatch.setattr(BusMetrics.dropped_reports, "inc", lambda: seen.append("report"))
    monkeypatch.setattr(BusMetrics.failures, "inc", lambda tags: seen.append(tags["phase"]))
    return seen


async def serving(world: World, version: int) -> Replica:
    await world.register_trainer()
    replica = await world.replica("r")
    await world.bus.publish(manifest(version))
    await replica.vote(await replica.receive(StageWeights))
    await replica.receive(CommitWeights)
    await replica.committed(version)
    await world.until(lambda t: bool(t.leased))
    return replica


async def serves(world: World, version: int) -> bool:
    table = await world.table()
    return [m.committed_version for m in table.leased] == [version]


def with_tensor(version: int, spec: TensorSpec) -> WeightManifest:
    return replace(manifest(version), tensors=(spec,))


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        (("v.weight", Dtype.FLOAT32, (4,), (2, 2)), "v.weight is not in the model"),
        (("w.weight", Dtype.FLOAT32, (6,), (3, 3)), r"w.weight is \[6\] float32, but \[4\]"),
        (("w.weight", Dtype.BFLOAT16, (4,), (2, 2)), "bfloat16, but .* float32 is served"),
    ],
)
async def test_a_manifest_of_another_model_is_refused(
    world: World,
    counted: list[str],
    spec: tuple[str, Dtype, tuple[int], tuple[int, int]],
    problem: str,
) -> None:
    await serving(world, 3)
    name, dtype, shape, shards = spec
    other = TensorSpec(name=name, dtype=dtype, shape=shape, shard_numels=shards)
    with pytest.raises(InvalidInput, match=problem) as caught:
        await world.bus.publish(with_tensor(4, other))
    assert caught.value.field == "tensors"
    assert counted == ["publish_tensors"]
    assert await serves(world, 3)
    assert (await world.table()).newest_version == 3
    await world.bus.publish(manifest(4))


async def test_a_trainer_of_another_size_may_publish_the_same_model(world: World) -> None:
    await serving(world, 3)
    alone = TensorSpec(name="w.weight", dtype=Dtype.FLOAT32, shape=(4,), shard_numels=(4,))
    await world.bus.publish(with_tensor(4, alone))


async def test_a_version_that_goes_backwards_is_refused(world: World, counted: list[str]) -> None:
    await serving(world, 3)
    for version in (3, 2):
        with pytest.raises(InvalidInput, match="Version 3 exists") as caught:
            await world.bus.publish(manifest(version))
        assert (caught.value.field, caught.value.value) == ("version", version)
    assert counted == ["publish_version"] * 2
    assert await serves(world, 3)


async def test_a_second_trainer_ends_the_first_ones_right_to_publish(
    world: World, counted: list[str]
) -> None:
    await serving(world, 3)
    await world.register_trainer("second")
    with pytest.raises(InvalidInput, match="second has taken over this bus") as caught:
        await world.bus.publish(manifest(4), "a")
    assert (caught.value.field, caught.value.value) == ("group", "a")
    assert counted == ["publish_group"]
    assert await serves(world, 3)
    await world.bus.publish(manifest(4), "second")


async def test_a_report_of_an_unknown_replica_is_dropped_and_counted(
    world: World, counted: list[str]
) -> None:
    await serving(world, 3)
    await world.bus.report(
        Report(
            member_id="ghost",
            replica_id="ghost",
            phase=Phase.COMMIT,
            version=9,
            error=None,
            seconds=0.0,
        )
    )
    assert counted == ["report"]
    assert not (await world.bus.next_orders("ghost", 0, 0.0)).known
    assert await serves(world, 3)


@pytest.mark.parametrize("problem", ["digest of bucket 0", "base: 2 -> The copy is of version 1."])
async def test_what_a_replica_refuses_is_counted_and_leaves_the_old_version(
    world: World, counted: list[str], problem: str
) -> None:
    replica = await serving(world, 3)
    await world.bus.publish(manifest(4))
    await replica.vote(await replica.receive(StageWeights), problem)
    await replica.receive(DropLinks)
    assert counted == ["stage"]
    assert await serves(world, 3)
    assert (await replica.receive(StageWeights)).base is None, "after a failure everything is sent"
