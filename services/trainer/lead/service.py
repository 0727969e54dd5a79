"""The trainer's service: one operation at a time over the rank group, and its versions."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from services.observability import tracing
from services.observability.log import Log
from services.observability.metrics import TrainerMetrics
from services.protocol.errors import InvalidInput, NoResources, NotReady
from services.protocol.run.profile import ProfileRequest
from services.protocol.train_batch import TrainBatch
from services.protocol.trainer import (
    CheckpointReport,
    LedgerFrontier,
    RankProgress,
    RunStart,
    TrainerState,
    TrainReport,
    checkpoint_bytes,
)
from services.protocol.weights.weight_bus import WeightBus
from services.protocol.weights.weights import WeightManifest
from services.retry import retrying
from services.side_by_side import cancel
from services.trainer.batch.rank_batch import RankBatch
from services.trainer.batch.step_plan import StepPlan
from services.trainer.config import TrainerConfig
from services.trainer.lead.device_turn import DeviceTurn
from services.trainer.lead.group_progress import GroupProgress
from services.trainer.lead.metrics import record_checkpoint, record_start, record_step
from services.trainer.lead.rank_group import EachRank, RankGroup
from services.trainer.rank.rank_messages import Digests, RankRun, RankStep, by_sequence, report_of
from services.trainer.snapshot.publisher import CanaryScorer, Publisher

RESTART_PAUSES_S = (0.5, 2.0, 10.0, 30.0)
_RESTARTABLE = (NotReady, InvalidInput, RuntimeError)

T = TypeVar("T")
_log = Log("trainer")


@dataclass(frozen=True, kw_only=True)
class _Run:
    """The run that the ranks hold."""

    run_id: str
    step: int
    saved_step: int
    loaded: RankRun


class TrainerService:
    """Implements `services.protocol.trainer.Trainer`.

    Operations run one after another, each in a task of its own, so that a caller that gives up
    does not interrupt the ranks in the middle of a step.
    """

    def __init__(
        self,
        config: TrainerConfig,
        bus: WeightBus,
        start_group: Callable[[TrainerConfig, GroupProgress, DeviceTurn], Awaitable[RankGroup]],
    ) -> None:
        self._config, self._failed_starts, self._parameters = config, 0, 0
        self._progress, self._devices = GroupProgress(config), DeviceTurn(config, bus)
        self._start_group = partial(start_group, config, self._progress, self._devices)
        self._publisher = Publisher(bus, config.bus_timeout_s)
        self._canary = CanaryScorer(self._publisher, self._logprobs)
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._loops: list[asyncio.Task[None]] = []
        self._first_publish: asyncio.Task[None] | None = None
        self._group: RankGroup | None = None
        self._run: _Run | None = None
        self._last_start: RunStart | None = None
        self._restored: tuple[RunStart, RankRun] | None = None  # what new ranks have loaded
        self._unsettled = False  # the ranks may be ahead of the published version
        self._profile: ProfileRequest | None = None  # that ranks are to be told of
        self._profiled_until = 0  # the last step of the one that they were told of
        self._longest_row: int | None = None
        self._peak_flops: float | None = None

    async def open(self) -> None:
        """Start the ranks once nodes have the resources; all else happens in the background.

        Raises:
            InvalidInput: the model cannot be loaded.
            NotReady: the ranks did not come up.
        """
        self._install(await _retrying("no_resources", self._start_group, on=NoResources))
        loops = [self._supervise(), self._publisher.keep_published()]
        if self._devices.shared:
            loops.append(self._devices.end_forgotten(self._turn))
        self._loops = [asyncio.create_task(loop) for loop in loops]

    async def close(self) -> None:
        """End the ranks and everything in flight."""
        await cancel(*self._tasks, *self._loops)
        if self._group is not None:
            await self._group.close()

    def check_health(self) -> None:
        """Raise if the service cannot recover by itself; Serve then restarts the replica."""
        if any(loop.done() for loop in self._loops):
            raise RuntimeError("the trainer no longer watches its ranks or its versions")

    async def state(self) -> TrainerState:
        """See `Trainer.state`; answers during a train step."""
        ready = self._group is not None and not self._group.lost.is_set()
        run = self._run if ready else None
        return TrainerState(
            ready=ready,
            run_id=run.run_id if run else None,
            step=run.step if run else 0,
            policy_version=self._publisher.version,
            world_size=self._config.world_size,
            row_groups=self._config.row_groups,
            parameters=self._parameters,
            checkpoint_bytes=None if self._config.lora else checkpoint_bytes(self._parameters),
            checkpoints_kept=self._config.checkpoints_kept,
            longest_row=self._longest_row,
            frontier=run.loaded.frontier if run else None,
            refused_checkpoints=run.loaded.refused if run else (),
            progress=self._progress.slowest or self._beside_ranks(),
            failed_starts=self._failed_starts,
            shares_devices=self._devices.shared,
        )

    def _beside_ranks(self) -> RankProgress | None:
        """What the trainer does while no rank has work."""
        if self._group is None or self._group.lost.is_set():
            return RankProgress(phase="starting")
        doing = "waiting for engines to free its devices" if self._devices.waiting else "publishing"
        return RankProgress(phase=doing) if self._turn.locked() else None

    async def start_run(self, start: RunStart) -> TrainerState:
        """See `Trainer.start_run`."""
        return await self._in_turn(lambda: self._start_run(start))

    async def train(self, batch: TrainBatch) -> TrainReport:
        """See `Trainer.train`.

        Raises:
            InvalidInput: another run, or not the next step.
        """
        with tracing.span("train_step", tracing.of(batch.trace), step=batch.step):
            return await self._in_turn(lambda: self._train(batch))

    async def save(
        self, run_id: str, frontier: LedgerFrontier | None = None, wait: bool = True
    ) -> CheckpointReport:
        """See `Trainer.save`."""
        return await self._in_turn(lambda: self._save(run_id, frontier, wait))

    async def logprobs(self, sequences: list[list[int]]) -> list[list[float]]:
        """See `Trainer.logprobs`."""
        return await self._in_turn(lambda: self._logprobs(sequences))

    async def begin_turn(self) -> None:
        """See `Trainer.begin_turn`."""
        await self._in_turn(self._devices.keep)

    async def end_turn(self) -> None:
        """See `Trainer.end_turn`."""
        if self._group is not None and not self._group.lost.is_set():  # else it has ended
            async with self._turn:
                await self._devices.end()

    async def profile(self, request: ProfileRequest) -> None:
        """See `Trainer.profile`."""
        run = self._running("run_id", request.run_id)
        if self._profile is not None or run.step < self._profiled_until:
            raise NotReady("the trainer is profiling for another request: ask when that is done")
        last = self._config.world_size - 1
        if wrong := [rank for rank in request.ranks if not 0 <= rank <= last]:
            raise InvalidInput("ranks", wrong[0], f"The trainer has ranks 0 to {last}.")
        self._profile = request

    async def _start_run(self, start: RunStart) -> TrainerState:
        restored, self._restored = self._restored, None
        if restored is not None and restored[0] == start:
            loaded = restored[1]
        else:
            loaded = await self._load_and_publish(start)
        self._last_start = start
        self._profile, self._profiled_until = None, 0  # new ranks, or another run
        step = loaded.step
        self._run = _Run(run_id=start.run_id, step=step, saved_step=step, loaded=loaded)
        self._unsettled = False
        return await self.state()

    async def _load_and_publish(self, start: RunStart) -> RankRun:
        """Load the run's newest good checkpoint and publish it if it is not."""
        await self._canary.score()  # before the weights change
        self._run = None
        version = await self._publisher.next_version()
        runs: list[RankRun] = await self._call("start_run", start, version)
        record_start(start.run_id, runs[0].refused)
        self._take_canary(runs[0])
        manifest = self._manifest(version, runs[0].step, [run.digests for run in runs])
        if await self._publisher.is_published(manifest):
            _log.info("run_starts_from_published_weights", run=start.run_id)
        else:
            await self._publish(manifest)
        return runs[0]

    async def _train(self, batch: TrainBatch) -> TrainReport:
        started = time.perf_counter()
        run = self._running("batch.run_id", batch.run_id)
        if batch.step != run.step + 1:
            raise InvalidInput("batch.step", batch.step, f"The next step is {run.step + 1}.")
        await self._canary.score()  # before the weights change
        held, version = self._publisher.version, await self._publisher.next_version()
        self._unsettled = True
        try:
            plan = await self._planned(batch)
            if self._profile is not None:
                request, self._profile = self._profile, None
                await self._call("profile", request)
                self._profiled_until = run.step + request.steps
            steps = await self._step_of_ranks(plan, held, version)
        except InvalidInput:
            self._unsettled = False  # refused before anything was computed
            raise
        manifest = self._manifest(version, batch.step, [step.digests for step in steps])
        with tracing.span("publish", version=version) as publishing:
            await self._publish(replace(manifest, trace=publishing.traceparent))
        report = report_of(
            steps, plan, total_s=time.perf_counter() - started, peak_flops=self._peak_flops
        )
        saved_step = record_checkpoint(batch.run_id, run.saved_step, report.checkpoint)
        self._run = replace(run, step=batch.step, saved_step=saved_step)
        self._unsettled = False
        record_step(batch.run_id, report)
        return report

    async def _planned(self, batch: TrainBatch) -> StepPlan:
        group, start = self._group, self._last_start
        if group is None or start is None:
            raise NotReady("the trainer's ranks are restarting")
        return await asyncio.to_thread(group.model.plan, batch, start)

    async def _step_of_ranks(
        self, plan: StepPlan, held: int | None, version: int
    ) -> list[RankStep]:
        def part(rank: int) -> RankBatch:
            return plan.part(rank // self._config.context_parallel)

        began = time.time()
        with tracing.span("ranks", ranks=self._config.world_size):
            steps: list[RankStep] = await self._call("train", EachRank(part), held, version)
            for phase in ("forward_backward", "optimizer", "snapshot"):  # in this order
                took = steps[0].seconds.get(phase, 0.0)
                tracing.begin(phase, at_s=began).end(began + took)
                began += took
        return steps

    async def _save(
        self, run_id: str, frontier: LedgerFrontier | None, wait: bool
    ) -> CheckpointReport:
        run = self._running("run_id", run_id)
        version = self._publisher.version
        reports: list[CheckpointReport] = await self._call("save", version, frontier, wait)
        self._run = replace(run, saved_step=record_checkpoint(run_id, run.saved_step, reports[0]))
        return reports[0]

    async def _logprobs(self, sequences: list[list[int]]) -> list[list[float]]:
        parts: list[dict[int, list[float]]] = await self._call("logprobs", sequences)
        return by_sequence(parts)

    async def _in_turn(self, operation: Callable[[], Awaitable[T]]) -> T:
        if self._group is None or self._group.lost.is_set():
            raise NotReady("the trainer's ranks are restarting")

        async def wait_and_run() -> T:
            async with self._turn, self._on_devices():
                return await operation()

        return await asyncio.shield(self._own(wait_and_run()))

    def _on_devices(self) -> AbstractAsyncContextManager[None]:
        """Have the ranks on their devices for an operation."""
        if self._group is None:
            raise NotReady("the trainer's ranks are restarting")
        return self._devices.on_devices(self._group)

    def _own(self, work: Any) -> "asyncio.Task[Any]":
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _call(self, method: str, *args: Any) -> list[Any]:
        if self._group is None:
            raise NotReady("the trainer's ranks are restarting")
        return await self._group.call(method, *args)

    def _running(self, field: str, run_id: str) -> _Run:
        if self._run is None or self._unsettled:
            raise NotReady("the trainer holds no run that it can continue; call start_run")
        if self._run.run_id != run_id:
            raise InvalidInput(field, run_id, f"The trainer holds run {self._run.run_id!r}.")
        return self._run

    def _install(self, group: RankGroup) -> None:
        self._group = group
        self._publisher.follow(group.name)
        self._restored = None
        self._parameters, self._peak_flops = group.model.parameters, group.model.peak_flops
        self._longest_row = group.model.limits.longest_row
        self._first_publish = self._own(self._publish_first())

    async def _supervise(self) -> None:
        """Replace a lost group, for as long as the service lives."""
        while True:
            assert self._group is not None, "open() installed a group"
            await self._group.lost.wait()
            self._run = None
            await cancel(self._first_publish)
            await self._group.close()
            TrainerMetrics.restarts.inc()
            self._install(await self._restart())

    async def _restart(self) -> RankGroup:
        async def start() -> RankGroup:
            try:
                async with self._turn:  # no operation of the ranks before them has devices
                    group = await self._start_group()
            except _RESTARTABLE as error:
                self._failed_starts += not isinstance(error, NoResources)
                raise
            self._failed_starts = 0
            return group

        return await _retrying("restart_failed", start)

    async def _publish_first(self) -> None:
        """Give rollout servers weights as soon as there are ranks, however often it takes."""

        async def publish() -> None:
            async with self._turn, self._on_devices():
                await self._publish_unless_published()

        await _retrying("first_publish_failed", publish)

    async def _publish_unless_published(self) -> None:
        """Publish what new ranks should hold: the last run's newest checkpoint, else the
        model's initial weights.

        Initial weights are published if there is no version, or the newest one is of another
        model, which an operator has replaced. Versions of this model and of an unknown run stay:
        this trainer has restarted, and `start_run` will say which checkpoint to load. The ranks
        hold no run afterwards: `start_run` must follow, since they may be at an earlier step.
        """
        if self._publisher.holds_snapshots:
            return
        if self._last_start is not None:
            loaded = await self._load_and_publish(self._last_start)
            self._restored = self._last_start, loaded
            return
        # The bus's newest version is never below what its members serve.
        if await self._publisher.published_model() in ("", self._config.model):
            _log.info("weights_of_an_unknown_run_left_alone")
            return
        version = await self._publisher.next_version()
        digests = await self._call("snapshot", version)
        await self._publish(self._manifest(version, 0, digests))

    async def _publish(self, manifest: WeightManifest) -> None:
        await self._publisher.publish(manifest)
        if self._devices.shared:
            await self._canary.score()  # delivered it is when the ranks have no devices any more
        elif manifest.canary:
            self._own(self._canary.score_when_delivered(manifest.version, self._turn))

    def _take_canary(self, run: RankRun) -> None:
        """Have the run's versions scored at tokens that its policy finds likely."""
        assert self._group is not None, "the ranks have just answered"
        self._group.model = replace(self._group.model, canary=run.canary)

    def _manifest(self, version: int, step: int, digests: list[Digests]) -> WeightManifest:
        assert self._group is not None, "the ranks have just answered"
        senders = digests[: self._config.shards]
        return self._group.model.manifest(version, step, senders, self._config.model)


async def _retrying(event: str, work: Callable[[], Awaitable[T]], on: Any = _RESTARTABLE) -> T:
    """Repeat `work` for ever; each failure is logged as `event`."""

    def failed(error: Exception, pause_s: float) -> None:
        _log.warning(event, why=str(error), again_in_s=pause_s)

    return await retrying(work, on=on, pauses=RESTART_PAUSES_S, failed=failed)
