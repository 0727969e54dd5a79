"""The last steps of a run; each part runs on its own, and none may raise.

A run that broke on a full disk breaks here again; it must still be seen to have ended.
"""

import asyncio
import sqlite3
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from errno import ENOSPC

from services.observability.log import Log
from services.observability.metrics import RunMetrics
from services.orchestrator.core.book import GroupBook
from services.orchestrator.core.context import RunContext
from services.orchestrator.failures import one_line
from services.orchestrator.loop.recovery import TrainerLost, ask
from services.orchestrator.observers.run_record import RunRecord
from services.protocol.run.orchestrator import LedgerCounts, RunState, RunSummary

_RELEASE_S = 10.0
_log = Log("orchestrator")


class RunEnding:
    """Ends one run; a part that fails is logged and counted."""

    def __init__(self, context: RunContext, book: GroupBook, record: RunRecord) -> None:
        self._context, self._fleet = context, context.fleet
        self._progress, self._tags = context.progress, context.tags
        self._directory, self._seed = context.directory, context.run.seed
        self._book, self._ledger, self._record = book, book.ledger, record

    async def save(self) -> None:
        """Write a checkpoint if there are train steps that none holds."""
        # While the trainer recovers, the weights of the last steps are gone already.
        lost = self._progress.state is RunState.RECOVERING
        if lost or self._progress.step <= self._progress.saved_step:
            return
        if self._ledger.behind:  # a checkpoint must not know of a step that the ledger lacks
            self.failed("checkpoint", OSError(ENOSPC, "no disk space for the ledger"))
            return
        save = self._context.peers.trainer.save
        try:
            await asyncio.to_thread(self._ledger.sync)
            saving = save(self._progress.run_id, self._ledger.frontier())
            report, _ = await ask(self._context, saving)
        except (TrainerLost, OSError) as error:
            self.failed("checkpoint", error)
        else:
            self._progress.saved_step = report.saved_step

    async def release_replicas(self) -> None:
        """Take the run's staleness bound off the rollout servers, unless the run goes on: then it
        is that of the orchestrator that took the run over."""
        with self._part("lag_bound"):
            if not self.is_taken():
                await self._fleet.bound_lag(None, _RELEASE_S)

    def is_taken(self) -> bool:
        """Whether another orchestrator took the run over."""
        try:
            return self._ledger.look_taken()
        except sqlite3.Error:  # a damaged file, with which nobody goes on
            return self._ledger.taken

    async def close_record(self) -> None:
        """Write all records of steps and groups to their files."""
        with self._part("records"):
            await self._record.close()

    async def close(self, state: RunState, detail: str) -> LedgerCounts | None:
        """Write the summary, close the ledger and only then show the last state.

        Returns the ledger as it was closed, None where it cannot be read any more.
        """
        self._progress.detail = "writing the summary"
        try:
            summary = self._summarise(state)
        except Exception as error:  # noqa: BLE001  the edge of a run's life
            self.failed("summary", error)
            state = RunState.FAILED if state is RunState.FINISHED else state
            detail = f"{detail}; its summary could not be written: {error!r}"
        else:
            self._progress.summary = summary
            if state is RunState.FINISHED and summary.findings:
                detail = f"{detail}; {summary.findings[0].text}"
            with self._part("learning_curve"):
                await asyncio.to_thread(self._directory.draw_learning_curve)
        await asyncio.to_thread(self._record.trackers.close, state)
        self._book.end()
        counts = self._close_ledger()  # no await below: a status shows ledger or last state
        self._record.forget()
        self._progress.enter(state, detail)
        RunMetrics.ended.inc(1, self._tags | {"state": str(state)})
        _log.info("run_ended", run=self._progress.run_id, state=state, detail=detail)
        return counts

    def explain(self, error: BaseException) -> str:
        """Describe an unexpected error; its traceback goes to the run directory."""
        trace = "".join(traceback.format_exception(error))
        _log.warning("run_broke", run=self._progress.run_id, error=trace)
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        what = f"unexpected {type(error).__name__}: {one_line(str(error))}"
        try:
            self._directory.write_error(trace)
        except OSError as problem:
            self.failed("error_file", problem)
            return what
        return f"{what}; its traceback is in {self._directory.error}"

    def failed(self, part: str, error: Exception) -> None:
        """Log and count that a part did not succeed."""
        _log.warning("run_end_failed", **self._tags, part=part, error=repr(error))
        RunMetrics.end_failures.inc(1, self._tags | {"part": part})

    def _summarise(self, state: RunState) -> RunSummary:
        if state is RunState.FINISHED:
            self._book.expire_all()
        summary = self._record.summarise(seed=self._seed, pushes=self._fleet.pushes)
        if not self._ledger.catch_up():
            raise OSError(ENOSPC, "no disk space for the ledger")
        return summary

    def _close_ledger(self) -> LedgerCounts | None:
        with self._part("ledger"):
            counts = self._ledger.counts()
            self._ledger.close()
            return counts
        return None

    @contextmanager
    def _part(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001  the edge of a run's life
            self.failed(name, error)
