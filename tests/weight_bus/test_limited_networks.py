"""Real ranks, relays and replicas on machines whose cables carry little."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from benchmarks.weight_fanout.world import TRAINER, Shape, World, copies
from tests.operations.network import why_not

pytestmark = [
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
    pytest.mark.timeout(600),
]

NBYTES, BUCKET = 8 << 20, 1 << 20


@contextmanager
def opened(shape: Shape) -> Iterator[World]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # OpenMP does not work in forks of a process that has used it
    try:
        with World(shape) as world:
            yield world
    finally:
        torch.set_num_threads(threads)


def test_links_are_spread_over_two_interfaces() -> None:
    shape = Shape(nodes=2, mbit_s=20.0, nbytes=NBYTES, bucket_bytes=BUCKET, cables=2)

    async def pushed(world: World) -> None:
        await world.open()
        await world.push()  # opens the links
        await world.push()

    with opened(shape) as world:
        asyncio.run(pushed(world))
        for name in (TRAINER, world.nodes[0]):  # which passes everything on
            sent = world.machines[name].sent_by_interface
            assert min(sent.values()) > 0.45 * 2 * NBYTES, sent


def test_a_trainer_that_publishes_faster_than_the_network_carries_skips_versions() -> None:
    shape = Shape(nodes=2, mbit_s=20.0, nbytes=NBYTES, bucket_bytes=BUCKET)

    async def flooded(world: World) -> int:
        await world.open()
        await world.push()  # opens the links
        before, published, held, received = world.machines[TRAINER].sent, 0, 0, 0
        while received < 3:
            await world.publish()
            published += 1
            held = max(held, len(copies(world.pids(TRAINER))))
            await asyncio.sleep(0.1)  # a train step, much shorter than a version takes
            received = sum(one.commits > 0 for one in await world.bus.versions())
        await world.until_served()
        _, *records = await world.bus.versions()
        carried = sum(one.commits > 0 for one in records)
        assert carried < published, "some are skipped"
        assert all(one.commits in (0, 2) for one in records), "by all nodes"
        assert sum(one.failures for one in records) == 0
        sent = world.machines[TRAINER].sent - before
        assert sent < 1.2 * NBYTES * carried, "the trainer feeds the first relay alone"
        return held

    with opened(shape) as world:
        assert asyncio.run(flooded(world)) <= 2 * 4, "of two ranks: two kept, one sent, one made"
