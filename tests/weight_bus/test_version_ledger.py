"""What the bus remembers of the versions that went through it."""

from services.protocol.weights.version_ledger import VersionRecord
from services.protocol.weights.weight_bus import CommitWeights, DropLinks, StageWeights
from services.weight_bus.version_ledger import VersionLedger

from .conftest import Clock, Replica, World, manifest


async def records(world: World) -> dict[int, VersionRecord]:
    return {record.version: record for record in await world.bus.versions()}


async def update(world: World, replica: Replica, version: int) -> None:
    order = await replica.receive(StageWeights)
    await replica.vote(order)
    await replica.receive(CommitWeights)
    await replica.committed(version)
    await world.until(lambda t: all(m.committed_version == version for m in t.members))


async def test_a_version_is_accounted_for_from_its_publishing_to_its_commits(world: World) -> None:
    await world.register_trainer()
    replica = await world.replica("r")
    await world.bus.publish(manifest(3))
    await update(world, replica, 3)
    await world.bus.publish(manifest(4))
    await replica.vote(await replica.receive(StageWeights), "digest of bucket 0")
    await replica.receive(DropLinks)
    await update(world, replica, 4)
    first, second = (await records(world)).values()
    assert (first.version, first.train_step, first.base) == (3, 3, None)
    assert (second.version, second.train_step, second.base) == (4, 4, 3)
    assert first.digest == manifest(3).digest
    assert first.published_at is not None
    assert [one.at >= first.published_at for one in first.outcomes] == [True]
    assert (first.commits, first.failures) == (1, 0)
    assert (second.commits, second.failures) == (1, 1)
    errors = [one.error for one in second.outcomes]
    assert errors == ["stage: digest of bucket 0", None]
    failed, committed = second.outcomes
    assert (failed.seconds, failed.stage_s, failed.commit_s) == (None, None, None)
    assert committed.seconds is not None
    phases = committed.stage_s, committed.commit_s, committed.paused_s
    assert phases == (0.01, 0.01, 0.01)  # as the replica reported


async def test_a_restarted_bus_begins_with_what_its_members_tell(world: World) -> None:
    await world.register_trainer()
    await world.replica("r", committed_version=7)
    await world.restart_bus()
    assert await records(world) == {}
    await world.replica("r", committed_version=7)
    await world.replica("r", committed_version=7)  # says it again: counts once
    await world.replica("old", committed_version=6)
    known = await records(world)
    assert [(v, one.commits) for v, one in known.items()] == [(6, 1), (7, 1)]
    assert (known[7].train_step, known[7].digest, known[7].published_at) == (None, "", None)
    await world.bus.publish(manifest(7))
    again = (await records(world))[7]
    assert (again.train_step, again.commits) == (7, 1)
    assert again.published_at is not None


def test_only_so_many_versions_are_kept_and_none_comes_back() -> None:
    ledger = VersionLedger(3, wall=Clock())
    for version in range(5):
        ledger.published(manifest(version))
    ledger.failed("r", 0, "late")
    ledger.committed("r", 4)
    assert [record.version for record in ledger.records()] == [2, 3, 4]
    assert ledger.records()[0].base == 1


def test_outcomes_of_one_version_are_bounded_but_all_are_counted() -> None:
    ledger = VersionLedger(1, wall=Clock())
    for attempt in range(200):
        ledger.failed(f"r{attempt}", 0, "broken")
    (record,) = ledger.records()
    assert record.failures == 200
    assert len(record.outcomes) < 200
    assert record.outcomes[-1].replica_id == "r199"
