"""How many rollout replicas a run says it has work for."""

import asyncio
from pathlib import Path

import pytest

from services.changes import Changes
from services.orchestrator.core.context import RunContext
from services.orchestrator.core.progress import Progress
from services.orchestrator.core.schedule import Slots
from services.orchestrator.fleet import Fleet
from services.orchestrator.observers.replica_demand import ReplicaDemand, follow_demand
from services.orchestrator.run_folder.run_directory import RunDirectory
from tests.orchestrator.fakes import FakeBus, World, world

STARVED, FED = {"waited": 0.8, "ready": 0}, {"waited": 0.0, "ready": 4}
EVEN = {"waited": 0.1, "ready": 0}


@pytest.fixture
def demand() -> ReplicaDemand:
    return ReplicaDemand(batch_groups=4)


def wishes(demand: ReplicaDemand, look: dict[str, float], *, live: int, looks: int) -> list[int]:
    return [demand.look(live=live, **look) for _ in range(looks)]


def test_a_trainer_that_starves_twice_in_a_row_wants_one_replica_more(demand) -> None:
    assert wishes(demand, STARVED, live=1, looks=2) == [1, 2]


def test_no_second_replica_is_wanted_before_the_first_one_serves(demand) -> None:
    assert wishes(demand, STARVED, live=1, looks=9)[-1] == 2
    assert wishes(demand, STARVED, live=2, looks=2)[-1] == 3


def test_a_single_slow_batch_changes_nothing(demand) -> None:
    for _ in range(5):
        assert wishes(demand, STARVED, live=2, looks=1) == [2]
        assert wishes(demand, EVEN, live=2, looks=1) == [2]


def test_batches_that_wait_for_the_trainer_for_a_minute_let_one_replica_go(demand) -> None:
    assert wishes(demand, FED, live=3, looks=6) == [3, 3, 3, 3, 3, 2]
    assert wishes(demand, FED, live=2, looks=6)[-1] == 1
    assert wishes(demand, FED, live=1, looks=20)[-1] == 1


def test_a_trainer_that_hardly_waits_without_a_batch_to_spare_lets_none_go(demand) -> None:
    assert wishes(demand, {"waited": 0.0, "ready": 3}, live=3, looks=20)[-1] == 3


async def test_the_bus_is_told_until_the_run_ends(tmp_path: Path) -> None:
    async with world(tmp_path) as cluster:
        await follow_until_one_is_wanted(cluster)


async def follow_until_one_is_wanted(cluster: World) -> None:
    bus, changes = cluster.bus, Changes()
    slots = Slots(sampling=8, scoring=0, ready=0, training=0, updating=0, free=0)
    context = RunContext(
        run=cluster.run_config(),
        config=cluster.config,
        peers=cluster.peers,
        fleet=Fleet(bus, changes),
        progress=Progress(run_id="r", run_dir="", steps=1),
        changes=changes,
        directory=RunDirectory(cluster.run_root),
    )
    follower = asyncio.create_task(follow_demand(context, lambda: slots, look_s=0.01))
    try:
        async with asyncio.timeout(300):
            while bus.wanted != 1:
                context.progress.idle.look(trainer="rollout", slots=slots, capacity=8)
                await asyncio.sleep(0)
    finally:
        follower.cancel()
        await asyncio.gather(follower, return_exceptions=True)


async def test_a_replica_that_an_update_keeps_from_its_lease_is_still_counted() -> None:
    bus = FakeBus()
    bus.committed = {"a": 0, "b": 0}
    bus.newest = 1
    await bus.bound_lag(0)
    changes = Changes()
    fleet = Fleet(bus, changes)
    seen = changes.count
    watch = asyncio.create_task(fleet.watch())
    try:
        assert await changes.after(seen, 10.0)
    finally:
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)
    assert (len(fleet.leased), fleet.in_service) == (0, 2)
