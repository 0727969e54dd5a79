"""The trainer's head with a group of ranks and a bus that do as told."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

import pytest

from services.observability.metrics import TrainerMetrics
from services.protocol.errors import InvalidInput, NoResources, NotReady
from services.protocol.run.profile import ProfileRequest
from services.protocol.train_batch import TrainBatch
from services.protocol.trainer import CheckpointReport
from services.protocol.weights.version_ledger import VersionRecord
from services.protocol.weights.weight_bus import Member, MemberTable, ReplicaState
from services.protocol.weights.weights import CanaryLogprobs, Dtype, TensorSpec, WeightManifest
from services.trainer.config import TrainerConfig
from services.trainer.lead import service as service_module
from services.trainer.lead.device_turn import DeviceTurn
from services.trainer.lead.group_progress import GroupProgress
from services.trainer.lead.rank_group import EachRank
from services.trainer.lead.service import TrainerService
from services.trainer.rank.rank_messages import Digests, RankModel, RankRun, RankStep
from services.trainer.snapshot import publisher
from tests.batches import GroupBatch

CONFIG = TrainerConfig(model="model", world_size=2, bus_timeout_s=2.0)
MODEL = RankModel(
    parameters=4,
    tensors=(TensorSpec(name="w", dtype=Dtype.FLOAT32, shape=(4,), shard_numels=(2, 2)),),
    buckets=((0, 1),),
    canary=((3, 4), (5, 6)),
)
DEADLINE_S = 300.0


class FakeBus:
    def __init__(
        self, newest: int | None = None, served: int | None = None, served_model: str = ""
    ) -> None:
        self.newest, self.served, self.served_model = newest, served, served_model
        self.manifests: list[WeightManifest] = []
        self.groups: list[str | None] = []
        self.canaries: list[tuple[int, CanaryLogprobs]] = []
        self.digests: dict[int, str] = {}
        self.away = 0
        self.lose_answers = 0
        self.bus_id = "first"
        self.looked = asyncio.Event()

    async def watch(self, revision: int, wait_s: float) -> MemberTable:
        self._check_away()
        if revision == 1:  # nothing new: held open, as the bus does
            self.looked.clear()
            await self.looked.wait()
            self._check_away()
        member = Member(
            replica_id="r",
            address="",
            state=ReplicaState.LIVE,
            committed_version=self.served,
            leased=self.served is not None,
            model="m",
            max_model_len=1,
            pid=1,
        )
        return MemberTable(
            bus_id=self.bus_id,
            revision=1,
            newest_version=self.newest,
            lease_s=1.0,
            members=(member,),
            trainer_ready=True,
            pushes=0,
        )

    async def publish(self, manifest: WeightManifest, group: str | None = None) -> None:
        self._check_away()
        self.groups.append(group)
        if self.newest is not None and manifest.version <= self.newest:
            raise InvalidInput("version", manifest.version, "It must grow.")
        self.newest = manifest.version
        self.manifests.append(manifest)
        if self.lose_answers:
            self.lose_answers -= 1
            raise NotReady("the answer was lost")

    async def publish_canary(self, version: int, logprobs: CanaryLogprobs) -> None:
        self._check_away()
        self.canaries.append((version, logprobs))

    def restart(self) -> None:
        self.canaries.clear()
        self.newest, self.bus_id, self.away = self.served, "second", 2
        self.manifests.clear()
        self.looked.set()

    def _check_away(self) -> None:
        if self.away:
            self.away -= 1
            raise NotReady("away")

    async def versions(self) -> tuple[VersionRecord, ...]:
        self._check_away()
        models = {manifest.version: manifest.model for manifest in self.manifests}
        if self.served is not None:
            models.setdefault(self.served, self.served_model)
        return tuple(
            VersionRecord(
                version=version,
                train_step=0,
                digest=self.digests.get(version, ""),
                model=model,
                base=None,
                published_at=None,
                commits=0,
                failures=0,
                outcomes=(),
            )
            for version, model in models.items()
        )

    @property
    def published(self) -> list[int]:
        return [manifest.version for manifest in self.manifests]


class FakeGroup:
    """Two ranks whose weights are a number that training raises by one."""

    def __init__(self, saved_step: int = 0) -> None:
        self.name = "a"
        self.lost = asyncio.Event()
        self.model = MODEL
        self.closed = False
        self.saved_step = saved_step
        self.weights = 0
        self.calls: list[tuple[Any, ...]] = []
        self.error: BaseException | None = None
        self.gate = asyncio.Event()
        self.gate.set()
        self.entered = asyncio.Event()

    async def call(self, method: str, *args: Any) -> list[Any]:
        self.calls.append((method, *args))
        self.entered.set()
        await asyncio.wait_for(self.gate.wait(), DEADLINE_S)
        if self.error is not None:
            raise self.error
        return [getattr(self, method)(rank, *args) for rank in range(2)]

    def snapshot(self, rank: int, version: int) -> Digests:
        return digests_of(rank, self.weights)

    def start_run(self, rank: int, start: Any, version: int) -> RankRun:
        self.weights = self.saved_step
        digests = self.snapshot(rank, version)
        return RankRun(step=self.saved_step, digests=digests, canary=self.model.canary)

    def train(self, rank: int, parts: EachRank, held: int, version: int) -> RankStep:
        batch = parts.of_rank(rank)
        self.weights += rank  # once for both ranks
        metrics = {"loss": 0.5, "grad_norm": 1.0, "mismatch_max": 0.0}
        return RankStep(
            step=batch.step,
            policy_version=version,
            tokens=3,
            metrics=metrics,
            seconds={"optimizer": 0.1},
            digests=digests_of(rank, batch.step),
            checkpoint=CheckpointReport(),
        )

    def profile(self, rank: int, request: ProfileRequest) -> None:
        """Nothing to see here."""

    def save(self, rank: int, version: int, frontier: Any, wait: bool) -> CheckpointReport:
        return CheckpointReport(saved_step=self.weights)

    def logprobs(self, rank: int, sequences: list[list[int]]) -> dict[int, list[float]]:
        return {i: [float(-i)] for i in range(rank, len(sequences), 2)}

    async def close(self) -> None:
        self.closed = True
        self.lost.set()


def digests_of(rank: int, weights: int) -> Digests:
    """The digests name the weights."""
    return (f"{rank}/{weights}",)


class Starter:
    """Starts prepared groups in order; an exception in the list is a failed start, a function is
    called for the group."""

    def __init__(self, *groups: Any) -> None:
        self._groups = list(groups)
        self.started = 0

    async def __call__(
        self, config: TrainerConfig, progress: GroupProgress, devices: DeviceTurn
    ) -> FakeGroup:
        self.started += 1
        group = self._groups.pop(0)
        if isinstance(group, BaseException):
            raise group
        return await group() if callable(group) else group


@pytest.fixture
async def open_service(
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Callable[..., Any]]:
    monkeypatch.setattr(publisher, "RETRY_S", 0.001)
    monkeypatch.setattr(service_module, "RESTART_PAUSES_S", (0.001,))
    opened: list[TrainerService] = []

    async def open_one(
        bus: FakeBus, *groups: Any, config: TrainerConfig = CONFIG
    ) -> TrainerService:
        service = TrainerService(config, bus, Starter(*groups))  # type: ignore[arg-type]
        opened.append(service)
        await service.open()
        return service

    yield open_one
    for service in opened:
        await service.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110  (the fakes have no event for it)
            await asyncio.sleep(0)


def batch(step: int, run_id: str = "run") -> TrainBatch:
    return GroupBatch(run_id=run_id, step=step, groups=()).built


async def test_the_initial_weights_are_version_0_as_soon_as_the_bus_is_there(open_service) -> None:
    bus = FakeBus()
    bus.away = 5
    service = await open_service(bus, FakeGroup())
    await until(lambda: bus.published == [0])
    assert bus.manifests[0].digests == (("0/0",), ("1/0",))
    assert bus.manifests[0].canary == ((3, 4), (5, 6))
    assert bus.groups == ["a"]
    assert (await service.state()).policy_version == 0


async def test_a_version_consists_of_what_the_first_copy_of_the_model_holds(open_service) -> None:
    bus = FakeBus()
    await open_service(bus, FakeGroup(), config=CONFIG.model_copy(update={"model_copies": 2}))
    await until(lambda: bus.published == [0])
    assert bus.manifests[0].digests == (("0/0",),)


async def test_a_version_is_scored_as_soon_as_it_is_delivered(open_service) -> None:
    bus = FakeBus()
    await open_service(bus, FakeGroup())
    await until(lambda: bus.canaries == [(0, ((-0.0,), (-1.0,)))])


async def test_a_version_that_is_still_on_its_way_is_scored_before_the_weights_change(
    open_service, make_start
) -> None:
    bus, group = FakeBus(served=-1), FakeGroup()
    service = await open_service(bus, group)
    await service.start_run(make_start())
    await service.train(batch(1))
    await service.train(batch(2))
    called = [call[0] for call in group.calls]
    assert called == ["snapshot", "logprobs", "start_run", "train", "logprobs", "train"]
    assert [version for version, _ in bus.canaries] == [0, 1]


@pytest.mark.parametrize("served_model", ["", CONFIG.model])
async def test_weights_that_a_replica_serves_are_left_alone_until_a_run_starts(
    open_service, make_start, served_model: str
) -> None:
    bus = FakeBus(newest=12, served=12, served_model=served_model)
    service = await open_service(bus, FakeGroup(saved_step=7))
    state = await service.start_run(make_start())
    assert bus.published == [13]
    assert (state.run_id, state.step, state.policy_version) == ("run", 7, 13)


async def test_another_model_takes_the_place_of_the_one_that_is_served(open_service) -> None:
    bus = FakeBus(newest=12, served=12, served_model="the one before")
    await open_service(bus, FakeGroup())
    await until(lambda: bus.published == [13])
    assert bus.manifests[0].model == CONFIG.model


async def test_the_gauges_of_a_run_end_when_another_one_starts(open_service, make_start) -> None:
    service = await open_service(FakeBus(), FakeGroup())
    start = make_start()
    await service.start_run(start)
    await service.train(batch(1))
    gauges = (TrainerMetrics.mismatch, TrainerMetrics.grad_norm, TrainerMetrics.diagnostic)
    assert all(any(("run", "run") in key for key in gauge._last) for gauge in gauges)
    await service.start_run(replace(start, run_id="next"))
    assert not any(("run", "run") in key for gauge in gauges for key in gauge._last)


async def test_a_run_that_starts_from_the_published_weights_publishes_nothing(
    open_service, make_start
) -> None:
    bus = FakeBus()
    service = await open_service(bus, FakeGroup())
    state = await service.start_run(make_start())
    assert bus.published == [0]
    assert state.policy_version == 0


async def test_every_train_step_is_one_version_and_versions_never_go_back(
    open_service, make_start
) -> None:
    bus = FakeBus()
    group = FakeGroup()
    service = await open_service(bus, group)
    await service.start_run(make_start())
    reports = [await service.train(batch(step)) for step in (1, 2)]
    assert [report.policy_version for report in reports] == [1, 2]
    assert [call[2:] for call in group.calls if call[0] == "train"] == [(0, 1), (1, 2)]
    state = await service.start_run(make_start())  # back to the beginning, with a new number
    assert (state.step, state.policy_version) == (0, 3)
    assert bus.published == [0, 1, 2, 3]
    assert [manifest.train_step for manifest in bus.manifests] == [0, 1, 2, 0]


@pytest.mark.parametrize(
    ("wrong", "field"),
    [(batch(2), "batch.step"), (batch(0), "batch.step"), (batch(1, "other"), "batch.run_id")],
)
async def test_a_batch_of_another_run_or_step_is_refused_and_changes_nothing(
    open_service, make_start, wrong, field
) -> None:
    group = FakeGroup()
    service = await open_service(FakeBus(), group)
    await service.start_run(make_start())
    with pytest.raises(InvalidInput, match=field):
        await service.train(wrong)
    assert (await service.train(batch(1))).step == 1


async def test_a_batch_is_never_trained_twice(open_service, make_start) -> None:
    service = await open_service(FakeBus(), FakeGroup())
    await service.start_run(make_start())
    await service.train(batch(1))
    with pytest.raises(InvalidInput, match="next step is 2"):
        await service.train(batch(1))


async def test_a_batch_that_the_ranks_refuse_leaves_the_run_as_it_was(
    open_service, make_start
) -> None:
    group = FakeGroup()
    service = await open_service(FakeBus(), group)
    await service.start_run(make_start())
    group.error = InvalidInput("batch.groups[0]", 999, "Too large.")
    with pytest.raises(InvalidInput):
        await service.train(batch(1))
    group.error = None
    assert (await service.train(batch(1))).step == 1


async def test_a_publish_whose_answer_was_lost_is_not_published_again(
    open_service, make_start
) -> None:
    bus = FakeBus()
    service = await open_service(bus, FakeGroup())
    await service.start_run(make_start())
    bus.lose_answers = 1
    assert (await service.train(batch(1))).policy_version == 1
    assert bus.published == [0, 1]


async def test_a_bus_that_restarts_is_told_again_what_was_published_last(
    open_service, make_start
) -> None:
    bus = FakeBus()
    service = await open_service(bus, FakeGroup())
    await service.start_run(make_start())
    await service.train(batch(1))
    await until(lambda: [version for version, _ in bus.canaries] == [0, 1])
    bus.restart()
    await until(lambda: bus.published == [1])
    await until(lambda: [version for version, _ in bus.canaries] == [1])
    assert (await service.train(batch(2))).policy_version == 2
    assert bus.published == [1, 2]


async def test_a_bus_that_restarts_and_has_the_manifest_from_a_replica_is_told_the_canary(
    open_service, make_start
) -> None:
    bus = FakeBus()
    service = await open_service(bus, FakeGroup())
    await service.start_run(make_start())
    await service.train(batch(1))
    await until(lambda: [version for version, _ in bus.canaries] == [0, 1])
    bus.served = 1
    bus.restart()
    await until(lambda: [version for version, _ in bus.canaries] == [1])
    assert bus.published == []


async def test_a_restarted_bus_whose_replicas_are_newer_is_left_alone(
    open_service, make_start
) -> None:
    bus = FakeBus()
    service = await open_service(bus, FakeGroup())
    await service.start_run(make_start())
    await service.train(batch(1))
    bus.served = 7
    bus.restart()
    await until(lambda: bus.away == 0)
    assert (await service.train(batch(2))).policy_version == 8
    assert bus.published == [8]
    service.check_health()


async def test_a_version_that_a_restarted_bus_outruns_is_numbered_anew(
    open_service, make_start
) -> None:
    bus, group = FakeBus(), FakeGroup()
    service = await open_service(bus, group)
    await service.start_run(make_start())
    group.gate.clear()
    group.entered.clear()
    training = asyncio.ensure_future(service.train(batch(1)))
    await group.entered.wait()
    bus.newest = 52  # from a replica that registers after the restart
    group.gate.set()
    with pytest.raises(NotReady, match="version 1 cannot be published"):
        await training
    assert (await service.start_run(make_start())).policy_version == 53


async def test_a_version_whose_number_has_other_bytes_on_a_restarted_bus_is_numbered_anew(
    open_service, make_start
) -> None:
    bus, group = FakeBus(), FakeGroup()
    service = await open_service(bus, group)
    await service.start_run(make_start())
    group.gate.clear()
    group.entered.clear()
    training = asyncio.ensure_future(service.train(batch(1)))
    await group.entered.wait()
    bus.newest, bus.served, bus.digests = (
        1,
        1,
        {1: "other"},
    )  # from a relay that registers after the restart
    group.gate.set()
    with pytest.raises(NotReady, match="version 1 cannot be published"):
        await training
    assert (await service.start_run(make_start())).policy_version == 2


async def test_state_answers_during_a_train_step(open_service, make_start) -> None:
    group = FakeGroup()
    service = await open_service(FakeBus(), group)
    await service.start_run(make_start())
    group.gate.clear()
    group.entered.clear()
    step = asyncio.create_task(service.train(batch(1)))
    await group.entered.wait()
    state = await asyncio.wait_for(service.state(), DEADLINE_S)
    assert (state.ready, state.run_id, state.step) == (True, "run", 0)
    group.gate.set()
    assert (await step).step == 1


async def test_a_caller_that_gives_up_does_not_undo_the_step(open_service, make_start) -> None:
    group, bus = FakeGroup(), FakeBus()
    service = await open_service(bus, group)
    await service.start_run(make_start())
    group.gate.clear()
    group.entered.clear()
    step = asyncio.create_task(service.train(batch(1)))
    await group.entered.wait()
    step.cancel()
    group.gate.set()
    await until(lambda: bus.published == [0, 1])
    assert (await service.train(batch(2))).step == 2


async def test_lost_ranks_are_replaced_and_hold_no_run(open_service, make_start) -> None:
    first, second, bus = FakeGroup(), FakeGroup(saved_step=1), FakeBus()
    service = await open_service(bus, first, NotReady("port taken"), second)
    await service.start_run(make_start())
    await service.train(batch(1))
    bus.served = 1
    first.lost.set()
    assert not (await service.state()).ready
    with pytest.raises(NotReady):
        await service.train(batch(2))
    await until(lambda: service._group is second)
    assert first.closed
    state = await service.state()
    assert (state.ready, state.run_id) == (True, None)
    with pytest.raises(NotReady, match="start_run"):
        await service.train(batch(2))
    state = await service.start_run(make_start())
    assert (state.step, state.policy_version) == (1, 2)  # new ranks hold no snapshot: published
    assert (await service.train(batch(2))).policy_version == 3


async def test_new_ranks_give_replicas_the_last_runs_weights_without_being_asked(
    open_service, make_start
) -> None:
    first, second, bus = FakeGroup(), FakeGroup(saved_step=4), FakeBus()
    service = await open_service(bus, first, second)
    await service.start_run(make_start())
    bus.served = None  # every replica is gone, too
    first.lost.set()
    await until(lambda: bus.published == [0, 1])
    assert bus.manifests[1].digests == (("0/4",), ("1/4",)), "not the run's checkpoint"
    assert (await service.state()).run_id is None, "whoever leads the run must start it again"
    state = await service.start_run(make_start())
    assert (state.step, state.policy_version, bus.published) == (4, 1, [0, 1])
    assert [call[0] for call in second.calls if call[0] != "logprobs"] == ["start_run"], (
        "loaded twice"
    )
    assert (await service.train(batch(5))).policy_version == 2


async def test_initial_weights_never_follow_those_of_a_run_that_nobody_remembers(
    open_service, make_start
) -> None:
    bus, group = FakeBus(newest=9, served=None), FakeGroup(saved_step=3)
    service = await open_service(bus, group)
    state = await service.start_run(make_start())
    assert (bus.published, state.policy_version) == ([10], 10)
    assert [call[0] for call in group.calls if call[0] != "logprobs"] == ["start_run"]


async def test_nodes_that_come_late_are_waited_for_and_nothing_else_is(open_service) -> None:
    late = [NoResources("no node has 8 GPUs")] * 5
    service = await open_service(FakeBus(), *late, FakeGroup())
    assert (await service.state()).ready
    for error in (InvalidInput("model", "m", "There is none."), NotReady("a rank hung")):
        with pytest.raises(type(error)):
            await open_service(FakeBus(), *late, error)


async def test_a_restart_that_waits_for_nodes_is_no_failed_start(open_service) -> None:
    first, entered = FakeGroup(), asyncio.Event()

    async def hang() -> FakeGroup:
        entered.set()
        await asyncio.Event().wait()
        raise AssertionError

    starts = [NoResources("no node"), NotReady("port taken"), NoResources("no node"), hang]
    service = await open_service(FakeBus(), first, *starts)
    first.lost.set()
    async with asyncio.timeout(DEADLINE_S):
        await entered.wait()
    assert (await service.state()).failed_starts == 1


@pytest.mark.parametrize(
    "error", [NotReady("a rank is slow"), RuntimeError("no memory"), InvalidInput("x", 1, "y")]
)
async def test_the_first_publish_is_tried_until_it_succeeds(open_service, error) -> None:
    bus, group = FakeBus(), FakeGroup()
    group.error = error
    await open_service(bus, group)
    await until(lambda: len(group.calls) >= 3)
    assert bus.published == []
    group.error = None
    await until(lambda: bus.published == [0])


async def test_a_step_that_failed_needs_a_new_start(open_service, make_start) -> None:
    group = FakeGroup()
    service = await open_service(FakeBus(), group)
    await service.start_run(make_start())
    group.error = RuntimeError("no memory")
    with pytest.raises(RuntimeError, match="no memory"):
        await service.train(batch(1))
    group.error = None
    with pytest.raises(NotReady, match="start_run"):
        await service.train(batch(1))


async def test_logprobs_are_put_together_from_all_ranks(open_service) -> None:
    service = await open_service(FakeBus(), FakeGroup())
    assert await service.logprobs([[1], [2], [3]]) == [[0.0], [-1.0], [-2.0]]


async def test_save_names_the_run_and_returns_the_step(open_service, make_start) -> None:
    service = await open_service(FakeBus(), FakeGroup())
    await service.start_run(make_start())
    await service.train(batch(1))
    assert (await service.save("run")).saved_step == 1
    with pytest.raises(InvalidInput, match="run_id"):
        await service.save("other")


async def test_health_fails_when_nobody_watches_the_ranks(open_service) -> None:
    service = await open_service(FakeBus(), FakeGroup())
    service.check_health()
    assert service._loops[0] is not None
    service._loops[0].cancel()
    await asyncio.gather(service._loops[0], return_exceptions=True)
    with pytest.raises(RuntimeError, match="no longer watches"):
        service.check_health()


async def test_a_profile_is_told_to_ranks_before_the_next_step_and_only_once(
    open_service, make_start
) -> None:
    group = FakeGroup()
    service = await open_service(FakeBus(), group)
    await service.start_run(make_start())
    request = ProfileRequest(run_id="run", folder="/f", steps=2, ranks=(1,))
    await service.profile(request)
    await service.train(batch(1))
    await service.train(batch(2))
    called = [call[:2] for call in group.calls if call[0] in ("profile", "train")]
    assert [name for name, _ in called] == ["profile", "train", "train"]
    assert called[0][1] == request


async def test_a_second_profile_is_refused_until_the_first_is_done_or_another_run_begins(
    open_service, make_start
) -> None:
    service = await open_service(FakeBus(), FakeGroup())
    await service.start_run(make_start())
    request = ProfileRequest(run_id="run", folder="/f", steps=2, ranks=(1,))
    await service.profile(request)
    for step in (1, 2):
        with pytest.raises(NotReady, match="profiling for another request"):
            await service.profile(request)
        await service.train(batch(step))
    await service.profile(request)
    await service.start_run(make_start("other"))
    await service.profile(request)


@pytest.mark.parametrize(
    ("change", "field"), [({"run_id": "other"}, "run_id"), ({"ranks": (2,)}, "ranks")]
)
async def test_a_profile_of_another_run_or_of_a_rank_that_there_is_not_is_refused(
    open_service, make_start, change: dict[str, Any], field: str
) -> None:
    service = await open_service(FakeBus(), FakeGroup())
    await service.start_run(make_start())
    request = ProfileRequest(**({"run_id": "run", "folder": "/f"} | change))
    with pytest.raises(InvalidInput, match=field):
        await service.profile(request)


async def test_the_state_shows_what_the_trainer_does_while_no_rank_works(
    open_service, make_start
) -> None:
    bus, group = FakeBus(), FakeGroup()
    service = await open_service(bus, group)
    await service.start_run(make_start())
    await until(lambda: not service._turn.locked())
    assert (await service.state()).progress is None
    bus.away = 1  # so that the push has to wait
    training = asyncio.create_task(service.train(batch(1)))
    seen = set()
    while not training.done():
        progress = (await service.state()).progress
        seen.add(progress and str(progress))
        await asyncio.sleep(0)
    assert "publishing" in seen
