"""Who is given what a relay holds."""

from dataclasses import replace

import pytest

from services.protocol.errors import InvalidInput
from services.protocol.weights.weight_bus import StageWeights
from services.protocol.weights.weights import WeightManifest

from .conftest import World, manifest
from .test_relays import PLACE, asks, relay


def other_bytes(one: WeightManifest) -> WeightManifest:
    """The version of another trainer that has the same number."""
    return replace(one, digests=(("2" * 64,), ("3" * 64,)))


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
