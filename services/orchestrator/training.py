"""The loop of a run: admission and training side by side.

Admission starts sample groups while there are slots; rollout and scoring are the groups'
own tasks; training takes a batch whenever the schedule gives one. They meet only in the
schedule and the ledger, and wake each other through `Changes`.
"""

import asyncio
import time
from collections.abc import Callable, Sequence

from services.observability.log import Log
from services.observability.metrics import RunMetrics
from services.orchestrator.admission import RECHECK_S, Admission
from services.orchestrator.admission_window import AdmissionWindow
from services.orchestrator.changes import Changes
from services.orchestrator.checkpoints import Checkpoints
from services.orchestrator.config import OrchestratorConfig
from services.orchestrator.fleet import Fleet
from services.orchestrator.groups import Groups
from services.orchestrator.ledger import Ledger
from services.orchestrator.progress import Progress
from services.orchestrator.prompts import Order
from services.orchestrator.record import RunRecord
from services.orchestrator.recovery import RunFailed, TrainerLost, ask, start_trainer
from services.orchestrator.results import GroupResult
from services.orchestrator.schedule import Schedule, Selection
from services.orchestrator.trainer_idle import TrainerIdle
from services.protocol.orchestrator import RunConfig, RunState
from services.protocol.trainer import RunStart, TrainBatch, Trainer, TrainGroup, TrainReport

_log = Log("orchestrator")


class TrainingLoop:
    """Turns prompts into train steps until the run has its number of steps."""

    def __init__(
        self,
        *,
        run: RunConfig,
        config: OrchestratorConfig,
        task_ids: Sequence[str],
        prompts: Order,
        trainer: Trainer,
        start: RunStart,
        ledger: Ledger,
        schedule: Schedule,
        groups: Groups,
        fleet: Fleet,
        progress: Progress,
        changes: Changes,
        record: RunRecord,
        window: AdmissionWindow,
        checkpoints: Checkpoints,
        after_step: Callable[[], None],
    ) -> None:
        self._run = run
        self._config = config
        self._trainer = trainer
        self._start = start
        self._ledger = ledger
        self._schedule = schedule
        self._groups = groups
        self._fleet = fleet
        self._progress = progress
        self._changes = changes
        self._record = record
        self._window = window
        self._checkpoints = checkpoints
        self._after_step = after_step
        self._idle = TrainerIdle(
            schedule=schedule, fleet=fleet, progress=progress, timeline=record.timeline
        )
        self._admission = Admission(
            run=run,
            task_ids=task_ids,
            prompts=prompts,
            ledger=ledger,
            schedule=schedule,
            groups=groups,
            fleet=fleet,
            progress=progress,
            changes=changes,
            window=window,
            idle=self._idle,
        )
        self._recoveries_in_row = self._furthest = 0
        self._moved_at = 0.0
        self.stepping = asyncio.Lock()
        """Held from a train call until the ledger and the checkpoint agree with it."""

    async def run(self, trainer_version: int) -> None:
        """Train until all steps are done or there is nothing left to learn.

        Raises:
            RunFailed: with the reason for people.
        """
        self._idle.version = trainer_version
        self._admission.first(self._groups.take_up())
        admission = asyncio.create_task(self._admission.run(), name="admission")
        try:
            await self._train_all_steps(admission)
        finally:
            admission.cancel()
            await asyncio.gather(admission, return_exceptions=True)
            await self._groups.cancel_all()

    async def _train_all_steps(self, admission: asyncio.Task[None]) -> None:
        while self._progress.step < self._run.steps:
            waiting_since = time.monotonic()
            batch = await self._next_batch(admission)
            if batch is None:
                self._progress.detail = self._groups.barren.ending()
                return
            results = self._groups.take(batch.train + batch.filtered)
            at_bound = max(batch.staleness, default=0) >= self._schedule.bound > 0
            self._window.trained(at_bound=at_bound, ready=self._schedule.slots.ready)
            if not batch.train:
                self._ledger.close_batch(self._progress.step, train=(), filtered=batch.filtered)
                self._groups.traces.filtered(batch.filtered)
                self._record.filtered(results)
                self._schedule.published(None)
                tags = self._record.tags | {"status": "filtered"}
                RunMetrics.groups.inc(len(batch.filtered), tags)
                self._changes.notify()
                continue
            wait_s = time.monotonic() - waiting_since
            self._interrupt()
            try:
                await self._step(batch, results, wait_s)
            except TrainerLost as lost:
                await self._recover(lost, results)

    async def _next_batch(self, admission: asyncio.Task[None]) -> Selection | None:
        """The next batch; None when there is nothing left to learn."""
        self._moved_at = time.monotonic()
        while True:
            seen = self._changes.count
            self._check_health(admission)
            if self._progress.held:
                self._progress.detail = "paused; what was being sampled is kept"
                await self._changes.after(seen, RECHECK_S)
                self._moved_at = time.monotonic()
                continue
            self._deal_with_overdue()
            batch = self._schedule.select(self._idle.version)
            if batch is not None:
                return batch
            self._interrupt()
            if self._groups.barren.full:
                return None
            if time.monotonic() > max(self._moved_at, self._admission.moved_at) + self._stall_s:
                raise RunFailed(f"nothing new for {self._stall_s:g} s; {self._waiting_for()}")
            self._progress.detail = self._waiting_for()
            await self._changes.after(seen, RECHECK_S)

    def _interrupt(self) -> None:
        """What is being sampled goes on under the weights of a batch that is full."""
        version = self._idle.version
        self._groups.interrupt(self._schedule.interrupted(version), version + 1)

    @property
    def _stall_s(self) -> float:
        """Longer than all the deadlines together of a group that was admitted last.

        A batch may take longer, as places in it are filled again and again.
        """
        attempts = self._config.rollout_retries + 1
        longest = attempts * self._run.rollout_timeout_s + self._config.score_timeout_s
        return longest + self._config.replicas_timeout_s

    def _waiting_for(self) -> str:
        unfinished = self._schedule.unfinished
        if unfinished:
            awaited = self._schedule.awaited(self._idle.version)
            which = "all" if awaited == unfinished else f"the {awaited} oldest"
            needed = f"; the next train step needs {which} of them" if awaited else ""
            return f"{unfinished} sample groups are being sampled and scored{needed}"
        return f"waiting for rollout servers: {self._fleet}"

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
        """Groups above the staleness bound are never trained."""
        overdue = self._schedule.overdue(self._idle.version)
        closes = self._run.schedule.on_stale in ("drop", "mask")
        version = self._fleet.live_version
        if not overdue or (version is None and not closes):
            return  # without a replica there is nothing to sample them again
        open_groups = {group.group_id: group for group in self._ledger.in_flight()}
        for group_id in overdue:
            if closes or version is None:
                self._groups.close(group_id, "expired", reason="stale")
            else:
                self._groups.roll_out_again(open_groups[group_id], version, reason="stale")
                self._moved_at = time.monotonic()
        self._changes.notify()

    async def _step(self, batch: Selection, results: list[GroupResult], wait_s: float) -> None:
        await self._record.settled()
        step = self._progress.step + 1
        self._progress.detail = f"training step {step}"
        trained = results[: len(batch.train)]
        groups = tuple(result.as_train_group(batch.min_version) for result in trained)
        lost: TrainerLost | None = None
        async with self.stepping:
            with self._idle.busy():
                began_at = time.time()
                report, train_s = await self._train(step, batch, groups)
                self._record.timeline.trained(report, began_at, train_s)
                self._ledger.close_batch(step, train=batch.train, filtered=batch.filtered)
                self._progress.step = step
                self._progress.policy_version = self._idle.version = report.policy_version
                self._progress.saved_step = report.checkpoint.saved_step
                self._schedule.published(report.policy_version)
                self._changes.notify()
                seconds = {"wait": wait_s, "train": train_s, "save": 0.0}
                try:
                    seconds["save"] = await self._checkpoints.after_step(report)
                except TrainerLost as error:
                    lost = error
        if step > self._furthest:  # a step that kills the trainer each time is no progress
            self._recoveries_in_row, self._furthest = 0, step
        self._record.write(batch=batch, results=results, report=report, seconds=seconds)
        if lost is not None:
            raise lost
        self._after_step()

    async def _train(
        self, step: int, batch: Selection, groups: tuple[TrainGroup, ...]
    ) -> tuple[TrainReport, float]:
        """The trainer's part of a step, within the traces of its groups."""
        traces = self._groups.traces
        span = traces.training(batch.train, step)
        run_id, trace = self._progress.run_id, span.traceparent
        detailed = self._record.detailed(batch)
        work = TrainBatch(run_id=run_id, step=step, groups=groups, detailed=detailed, trace=trace)
        try:
            report, train_s = await ask(self._trainer.train(work))
        except TrainerLost:
            span.fail("trainer_lost")
            raise
        finally:
            span.end()
        traces.trained(batch.train, report.policy_version)
        traces.filtered(batch.filtered)
        return report, train_s

    # Recovery

    async def _recover(self, error: TrainerLost, results: Sequence[GroupResult]) -> None:
        """Go back to the newest checkpoint; what later steps trained is rolled out again.

        Admission and rollouts go on meanwhile. Those in progress, and the `results` of a batch
        that was not trained, are used as far as the staleness bound allows under the new version.
        """
        self._recoveries_in_row += 1
        self._progress.recoveries += 1
        _log.warning(
            "trainer_lost",
            run=self._progress.run_id,
            step=self._progress.step,
            version=self._idle.version,
            error=str(error),
        )
        if self._recoveries_in_row > self._config.recoveries_in_row:
            raise RunFailed(f"the trainer failed again after every recovery: {error}") from error
        self._progress.enter(RunState.RECOVERING, f"bringing the trainer back: {error}")
        self._schedule.lost()
        state = await start_trainer(self._trainer, self._start, self._config, self._progress)
        self._idle.version = -1 if state.policy_version is None else state.policy_version
        keep = self._schedule.went_back(self._idle.version)
        self._groups.put_back(one for one in results if one.group.group_id in keep)
        reopened = self._ledger.rollback(state.step, keep=keep)
        self._admission.first(one for one in self._ledger.in_flight() if one.group_id not in keep)
        self._record.rolled_back(state.step)
        self._progress.step = self._progress.saved_step = state.step
        self._progress.policy_version = state.policy_version
        RunMetrics.recoveries.inc(1, self._record.tags)
        _log.info(
            "trainer_back",
            run=self._progress.run_id,
            step=state.step,
            version=state.policy_version,
            reopened=reopened,
            kept=len(keep),
        )
        await self._fleet.wait_settled(self._idle.version, self._config.replicas_timeout_s)
        self._progress.enter(RunState.TRAINING, f"back at step {state.step}")
        self._changes.notify()
