"""Train steps, each from a batch to ledger, checkpoint and record; and the time between them."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

from services.orchestrator.core.book import GroupBook
from services.orchestrator.core.context import RunContext
from services.orchestrator.core.results import GroupResult
from services.orchestrator.core.schedule import Selection
from services.orchestrator.loop.checkpoints import Checkpoints
from services.orchestrator.loop.recovery import TrainerLost, ask
from services.orchestrator.observers.group_telemetry import GroupTraces
from services.orchestrator.observers.run_record import RunRecord
from services.protocol.run.orchestrator import RunState
from services.protocol.trainer import TrainBatch, TrainReport


class TrainerIdle:
    """Reports to the book what the trainer waits for, whenever that may have changed."""

    def __init__(self, context: RunContext, book: GroupBook) -> None:
        self._progress, self._fleet = context.progress, context.fleet
        self._book, self._schedule = book, book.schedule
        self._training = False

    @contextmanager
    def busy(self) -> Iterator[None]:
        """The trainer has work."""
        self._training = True
        self.look()
        try:
            yield
        finally:
            self._training = False
            self.look()

    def look(self) -> None:
        """Report what the trainer waits for now."""
        working = self._training and not self._progress.disk_full
        self._book.trainer_waits_for(None if working else self._waits_for())

    def _waits_for(self) -> str:
        """`rollout`, `score`, `weights` on the replicas, `replicas`, `admission`, `pause`, `disk`,
        or its own `recovery`."""
        if self._progress.disk_full:
            return "disk"
        if self._progress.paused:
            return "pause"
        if self._progress.state is RunState.RECOVERING:
            return "recovery"
        slots = self._schedule.slots
        if slots.scoring and not self._schedule.lacks_samples(self._progress.trainer_version):
            return "score"
        if slots.sampling or slots.scoring:
            return "rollout"
        if self._fleet.live_version is None:
            return "replicas"
        return "weights" if slots.updating else "admission"


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

    async def make(self, batch: Selection, results: list[GroupResult], wait_s: float) -> None:
        """Train a batch; `wait_s` is how long the trainer waited for it, seconds.

        Raises:
            TrainerLost: also after a step that is done, but whose checkpoint is not.
        """
        await self._record.settled()
        progress = self._context.progress
        step = progress.step + 1
        progress.detail = f"training step {step}"
        lost: TrainerLost | None = None
        async with self.lock:
            with self._idle.busy():
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

    async def _train(
        self, step: int, batch: Selection, results: list[GroupResult]
    ) -> tuple[TrainReport, float]:
        """Call the trainer, within the traces of the groups."""
        trained = results[: len(batch.train)]
        span = self._traces.training(batch.train, step)
        work = TrainBatch(
            run_id=self._context.run_id,
            step=step,
            groups=tuple(result.as_train_group(batch.min_version) for result in trained),
            detailed=self._record.detailed(batch),
            trace=span.traceparent,
        )
        try:
            return await ask(self._context.peers.trainer.train(work))
        except TrainerLost:
            span.fail("trainer_lost")
            raise
        finally:
            span.end()
