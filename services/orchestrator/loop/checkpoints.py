"""Checkpoints of a run; none is ahead of the ledger's file."""

import asyncio
import time

from services.ledger.ledger import Ledger
from services.orchestrator.core.context import RunContext
from services.orchestrator.loop.disk_guard import DiskGuard
from services.orchestrator.loop.recovery import RunFailed, ask
from services.orchestrator.observers.timeline import Timeline
from services.protocol.trainer import CheckpointReport, TrainReport


class Checkpoints:
    """Writes the checkpoints of a run, which waits while its disk is full."""

    def __init__(
        self, context: RunContext, ledger: Ledger, *, disk: DiskGuard, timeline: Timeline
    ) -> None:
        self._context, self._progress = context, context.progress
        self._every, self._steps = context.run.checkpoint.every, context.run.steps
        self._ledger, self._disk, self._timeline = ledger, disk, timeline

    async def after_step(self, report: TrainReport) -> float:
        """Write a checkpoint if one is due after this train step; returns the seconds it took.

        The last one must be on disk, and so must one for which the disk was full before; any
        other is written behind the next steps.

        Raises:
            TrainerLost: in place of the trainer's errors.
            RunFailed: the last one was not written, or its disk stayed full until the deadline.
        """
        last, disk_full = report.step == self._steps, report.checkpoint.disk_full
        if report.step % self._every and not last and not disk_full:
            return 0.0
        began, began_at = time.monotonic(), time.time()
        saved = await self._save(wait=last or disk_full)
        took = time.monotonic() - began
        self._timeline.span("trainer", "checkpoint", began_at, began_at + took)
        needed = report.step if last else 0
        self._progress.saved_step = _saved_step(saved, at_least=needed)
        return took

    async def last(self) -> None:
        """Write the last checkpoint of the run, of its newest train step, if there is none.

        Raises:
            TrainerLost: in place of the trainer's errors.
            RunFailed: it was not written.
        """
        progress = self._progress
        if progress.saved_step < progress.step or not progress.step:
            saved = await self._save(wait=True)
            progress.saved_step = _saved_step(saved, at_least=progress.step)

    async def _save(self, *, wait: bool) -> CheckpointReport:
        saved = await self._tried(wait=wait)

        async def written() -> bool:
            nonlocal saved
            if not await self._disk.has_space():
                return False
            saved = await self._tried(wait=True)
            return not saved.disk_full

        if saved.disk_full:
            if self._progress.shares_devices:  # engines go on meanwhile
                await ask(self._context, self._context.peers.trainer.end_turn())
            await self._disk.until(f"the checkpoint of step {self._progress.step}", written)
        return saved

    async def _tried(self, *, wait: bool) -> CheckpointReport:
        # Neither a kill nor a power cut may leave a checkpoint of a step that the ledger does not
        # know.
        await self._disk.ledger_written(self._ledger)
        await asyncio.to_thread(self._ledger.sync)
        trainer, frontier = self._context.peers.trainer, self._ledger.frontier()
        return (await ask(self._context, trainer.save(self._progress.run_id, frontier, wait)))[0]


def _saved_step(report: CheckpointReport, *, at_least: int) -> int:
    """The train step of the newest checkpoint on disk.

    Raises:
        RunFailed: it is older than it must be.
    """
    if report.saved_step < at_least:
        raise RunFailed(report.problem or f"there is no checkpoint of step {at_least}")
    return report.saved_step
