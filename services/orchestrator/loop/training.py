"""The loop of a run: admission and training side by side.

Admission starts sample groups while there are slots; rollout and scoring are the groups'
own tasks; training takes a batch whenever the schedule gives one. They meet only in the
schedule and the ledger, and wake each other through `Changes`.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from services.observability.log import Log
from services.observability.metrics import RunMetrics
from services.orchestrator.core.book import GroupBook
from services.orchestrator.core.context import RunContext
from services.orchestrator.core.results import GroupResult
from services.orchestrator.core.schedule import Selection
from services.orchestrator.evaluation.heldout import HeldOut
from services.orchestrator.loop.admission import RECHECK_S, Admission
from services.orchestrator.loop.checkpoints import Checkpoints
from services.orchestrator.loop.groups import Groups
from services.orchestrator.loop.recovery import RunFailed, TrainerLost, ask, start_trainer
from services.orchestrator.loop.trainer_idle import TrainerIdle
from services.orchestrator.observers.findings import STALE
from services.orchestrator.observers.group_telemetry import GroupTraces
from services.orchestrator.observers.run_record import RunRecord
from services.orchestrator.rollout.limits import RolloutLimits
from services.protocol.run.orchestrator import RunState
from services.protocol.train_batch import BatchBuilder
from services.protocol.trainer import TrainReport
from services.side_by_side import cancel

_log = Log("orchestrator")


class TrainSteps:
    """Makes the train steps, one after another.

    Attributes:
        lock: held from a train call until the ledger and the checkpoint agree with it.
        checkpoints: of the run.
    """

    def __init__(
        self,
        context: RunContext,
        book: GroupBook,
        *,
        traces: GroupTraces,
        idle: TrainerIdle,
        record: RunRecord,
        checkpoints: Checkpoints,
    ) -> None:
        self._context, self._book, self._traces, self._record = context, book, traces, record
        self._idle, self.checkpoints = idle, checkpoints
        self.lock = asyncio.Lock()

    async def make(self, batch: Selection, wait_s: float) -> None:
        """Train a batch; `wait_s` is how long the trainer waited for it, seconds.

        Raises:
            TrainerLost: also after a step that is done, but whose checkpoint is not.
        """
        await self._record.settled()
        progress = self._context.progress
        step, results = progress.step + 1, self._book.results(batch)
        progress.detail = f"training step {step}"
        lost: TrainerLost | None = None
        async with self.lock, self._turn():
            began_at = time.time()
            report, train_s = await self._train(step, batch, results)
            self._record.timeline.trained(report, began_at, train_s)
            self._book.trained(step, batch, report.policy_version)
            progress.step = step
            progress.policy_version = report.policy_version
            progress.saved_step = report.checkpoint.saved_step
            self._context.changes.notify()
            seconds = {"wait": wait_s, "train": train_s, "save": 0.0}
            try:
                seconds["save"] = await self.checkpoints.after_step(report)
            except TrainerLost as error:
                lost = error
        self._record.write(batch=batch, results=results, report=report, seconds=seconds)
        if lost is not None:
            raise lost

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """The time of a train step and its checkpoint: the trainer's turn, where its ranks share
        devices with engines.

        Rollouts in progress stand still meanwhile. A turn that cannot be ended ends by itself.

        Raises:
            TrainerLost: the engines do not free the devices, or the trainer was lost.
        """
        context = self._context
        with self._idle.busy():
            if not context.progress.shares_devices:
                yield
                return
            began_at, trainer = time.time(), context.peers.trainer
            await ask(context, trainer.begin_turn())
            try:
                yield
            finally:
                try:
                    await ask(context, trainer.end_turn())
                except TrainerLost as error:
                    _log.warning("turn_not_ended", run=context.run_id, why=str(error))
                self._record.timeline.span("turn", "turn", began_at, time.time())

    async def _train(
        self, step: int, batch: Selection, results: list[GroupResult]
    ) -> tuple[TrainReport, float]:
        """Call the trainer, within the traces of the groups."""
        trained = results[: len(batch.train)]
        builder = BatchBuilder(run_id=self._context.run_id, step=step)
        for result in trained:
            builder.add(result.as_train_group(batch.min_version))
            await asyncio.sleep(0)  # a large batch must not hold everything else up
        span = self._traces.training(batch.train, step)
        work = builder.batch(self._record.detailed(batch), span.traceparent)
        try:
            return await ask(self._context, self._context.peers.trainer.train(work))
        except TrainerLost:
            span.fail("trainer_lost")
            raise
        finally:
            span.end()


class TrainingLoop:
    """Turns prompts into train steps until the run has its number of steps."""

    def __init__(
        self,
        context: RunContext,
        book: GroupBook,
        groups: Groups,
        *,
        admission: Admission,
        steps: TrainSteps,
        heldout: HeldOut,
    ) -> None:
        self._context, self._run, self._config = context, context.run, context.config
        self._progress, self._changes = context.progress, context.changes
        self._book, self._schedule = book, book.schedule
        self._groups, self._admission, self._heldout = groups, admission, heldout
        self._steps = steps
        self._recoveries_in_row = self._furthest = 0
        self._moved_at = 0.0

    async def run(self) -> str:
        """Train until all steps are done or nothing is left to learn; returns which of the two.

        Raises:
            RunFailed: with the reason for people.
        """
        self._book.begin()
        self._admission.first(self._groups.restore())
        admission = asyncio.create_task(self._admission.run(), name="admission")
        try:
            ending = await self._train_all_steps(admission)
        finally:
            await cancel(admission)
            await self._groups.cancel_all()
        if self._progress.step < self._run.steps:
            await self._steps.checkpoints.last()
        return ending

    async def _train_all_steps(self, admission: asyncio.Task[None]) -> str:
        while self._progress.step < self._run.steps:
            waiting_since = time.monotonic()
            batch = await self._next_batch(admission)
            if batch is None:
                return self._groups.no_signal.ending()
            if not batch.train:
                self._book.filtered(self._progress.step, batch)
                self._changes.notify()
                continue
            wait_s = time.monotonic() - waiting_since
            self._interrupt()
            try:
                await self._step(batch, wait_s)
            except TrainerLost as lost:
                await self._recover(lost)
        return "all steps done"

    async def _next_batch(self, admission: asyncio.Task[None]) -> Selection | None:
        """The next batch; None when there is nothing left to learn."""
        self._moved_at = time.monotonic()
        while True:
            seen = self._changes.count
            self._check_health(admission)
            if self._progress.held:
                self._progress.detail = "paused; rollouts in progress are kept"
                await self._changes.after(seen, RECHECK_S)
                self._moved_at = time.monotonic()
                continue
            self._deal_with_overdue()
            batch = self._book.take_batch(self._progress.trainer_version)
            if batch is not None:
                return batch
            self._interrupt()
            if self._groups.no_signal.full:
                return None
            moved_at = max(self._moved_at, self._admission.moved_at, self._progress.moved_at)
            if time.monotonic() > moved_at + self._stall_s:
                raise RunFailed(f"nothing new for {self._stall_s:g} s; {self._waiting_for()}")
            self._progress.detail = self._waiting_for()
            await self._changes.after(seen, RECHECK_S)

    def _interrupt(self) -> None:
        """Interrupt rollouts in progress once a batch is full, if the schedule says so."""
        version = self._progress.trainer_version
        self._groups.interrupt(self._schedule.interrupted(version), version + 1)

    @property
    def _stall_s(self) -> float:
        """A time longer than one group can take without any progress.

        A batch may take longer, as places in it are filled again and again.
        """
        attempts = self._config.rollout_retries + 1
        longest = attempts * RolloutLimits.of(self._run).longest_quiet_s
        longest += self._config.score_timeout_s
        return longest + self._config.replicas_timeout_s

    def _waiting_for(self) -> str:
        unfinished = self._schedule.unfinished
        if unfinished:
            awaited = self._schedule.awaited(self._progress.trainer_version)
            which = "all" if awaited == unfinished else f"the {awaited} oldest"
            needed = f"; the next train step needs {which} of them" if awaited else ""
            return f"{unfinished} sample groups are being sampled and scored{needed}"
        return f"waiting for rollout servers: {self._context.fleet}"

    def _check_health(self, admission: asyncio.Task[None]) -> None:
        if self._groups.defect is not None:
            raise self._groups.defect
        if admission.done():
            admission.result()
        allowed = self._config.failures_in_row * self._run.batch_groups
        failures = self._progress.failures
        if failures.in_row >= allowed:
            raise RunFailed(f"{allowed} sample groups failed in a row, last: {failures.last}")

    def _deal_with_overdue(self) -> None:
        """Groups above the staleness bound are never trained; given answers are taken again, with
        the version of now: none of them is of older weights."""
        overdue = self._schedule.overdue(self._progress.trainer_version)
        closes = self._run.schedule.on_stale in ("drop", "mask")
        version = self._context.fleet.live_version
        limit = self._progress.trainer_version - self._schedule.bound
        if version is not None and version < limit:
            version = None  # as old they would be at once: the next weights are on their way
        if not overdue or (version is None and not closes):
            return  # without a replica there is nothing to sample them again
        open_groups = {group.group_id: group for group in self._book.ledger.in_flight()}
        for group_id in overdue:
            group = open_groups[group_id]
            if closes and not self._groups.is_given(group):
                self._groups.close(group_id, "expired", reason=STALE)
            elif version is not None:
                self._groups.roll_out_again(group, version, reason=STALE)
                self._moved_at = time.monotonic()
            else:
                continue
            self._changes.notify()

    async def _step(self, batch: Selection, wait_s: float) -> None:
        try:
            await self._steps.make(batch, wait_s)
        finally:
            # A step that kills the trainer each time is no progress.
            if self._progress.step > self._furthest:
                self._recoveries_in_row, self._furthest = 0, self._progress.step
        self._heldout.start_due()

    # Recovery

    async def _recover(self, error: TrainerLost) -> None:
        """Go back to the newest checkpoint; groups that later steps trained are rolled out again.

        Admission and rollouts go on meanwhile. Those in progress, and the batch
        that was not trained, are used as far as the staleness bound allows under the new version.
        """
        self._recoveries_in_row += 1
        self._progress.recoveries += 1
        _log.warning(
            "trainer_lost",
            run=self._progress.run_id,
            step=self._progress.step,
            version=self._progress.trainer_version,
            error=str(error),
        )
        if self._recoveries_in_row > self._config.recoveries_in_row:
            raise RunFailed(f"the trainer failed again after every recovery: {error}") from error
        self._progress.enter(RunState.RECOVERING, f"bringing the trainer back: {error}")
        self._book.trainer_lost()
        state = await start_trainer(self._context)
        if self._run.determinism and state.step < self._progress.step:
            raise RunFailed(
                f"the trainer went back from step {self._progress.step} to {state.step}, and a run "
                "that repeats goes on from there only from its ledger: resume it"
            ) from error
        self._progress.policy_version = state.policy_version
        keep, reopened = self._book.roll_back(state.step, self._progress.trainer_version)
        in_flight = self._book.ledger.in_flight()
        self._admission.first(one for one in in_flight if one.group_id not in keep)
        self._progress.step = self._progress.saved_step = state.step
        RunMetrics.recoveries.inc(1, self._context.tags)
        _log.info(
            "trainer_back",
            run=self._progress.run_id,
            step=state.step,
            version=state.policy_version,
            reopened=reopened,
            kept=len(keep),
        )
        await self._context.fleet.wait_settled(
            self._progress.trainer_version, self._config.replicas_timeout_s
        )
        self._progress.enter(RunState.TRAINING, f"back at step {state.step}")
        self._changes.notify()
