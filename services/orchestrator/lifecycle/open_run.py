"""The open run, noted for the next orchestrator.

A process that is killed says nothing, so it is noted when a run begins and erased when the run
has ended. A run that was asked to end does not come back; one whose orchestrator was killed,
or was replaced, does.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

from services.changes import Changes
from services.cluster_kv import ClusterValue
from services.ledger.ledger import ledger_of
from services.observability.log import Log
from services.observability.metrics import RunMetrics
from services.orchestrator.config import OrchestratorConfig
from services.orchestrator.core.progress import Progress
from services.orchestrator.loop.disk_guard import LEDGER, DiskGuard
from services.protocol.errors import InvalidInput, NotReady
from services.protocol.run.orchestrator import LedgerCounts, RunRequest, RunState, RunStatus
from services.side_by_side import race

_log = Log("orchestrator")


class OpenRun:
    """The run that a new orchestrator resumes.

    Args:
        note: where it is kept.
        returns: how often it comes back without a train step in between: a run that kills
            its orchestrator would otherwise do so for ever.
    """

    def __init__(self, note: ClusterValue, *, returns: int) -> None:
        self._note, self._most = note, returns

    async def begin(self, request: RunRequest, run_id: str) -> None:
        """A run was started or resumed by a client."""
        await self._write(
            request.model_copy(update={"resume": run_id, "branch": None}), step=-1, returns=0
        )

    async def end(self) -> None:
        """No run is open any more."""
        try:
            await self._note.erase()
        except NotReady as error:
            _log.warning("run_note_not_erased", why=str(error))

    async def noted(self) -> RunRequest | None:
        """The request of the open run; None if there is none or the note cannot be read."""
        try:
            request, _ = await self._read()
        except (NotReady, InvalidInput) as error:
            _log.warning("run_not_resumed", why=str(error))
            return None
        return request

    async def again(self) -> RunRequest | None:
        """The request to resume; None if there is none or the run was resumed too often."""
        try:
            request, noted = await self._read()
            if request is None:
                return None
            with ledger_of(Path(request.config.run_root) / str(request.resume)) as ledger:
                step = ledger.last_step()
        except (NotReady, InvalidInput) as error:
            _log.warning("run_not_resumed", why=str(error))
            return None
        returns = noted["returns"] + 1 if step <= noted["step"] else 1
        if returns > self._most:
            _log.warning("run_given_up", run=request.resume, step=step, returns=returns - 1)
            await self.end()
            return None
        await self._write(request, step=step, returns=returns)
        return request

    async def _read(self) -> tuple[RunRequest | None, dict[str, Any]]:
        text = await self._note.read()
        if text is None:
            return None, {}
        noted = json.loads(text)
        return RunRequest.from_data(noted["request"], source="run"), noted

    async def _write(self, request: RunRequest, *, step: int, returns: int) -> None:
        noted = {"request": request.model_dump(mode="json"), "step": step, "returns": returns}
        try:
            await self._note.write(json.dumps(noted))
        except NotReady as error:
            _log.warning("run_not_noted", run=request.resume, why=str(error))


class PendingResume:
    """A run that waits to be resumed: its ledger cannot be opened while its disk is full."""

    def __init__(self, request: RunRequest, config: OrchestratorConfig) -> None:
        run_id, run = str(request.resume), request.config
        folder = Path(run.run_root) / run_id
        self.progress = Progress(run_id=run_id, run_dir=str(folder), steps=run.steps)
        self._disk = DiskGuard(folder, config=config, progress=self.progress, changes=Changes())
        self._stop = asyncio.Event()

    @property
    def stopped(self) -> bool:
        """A client asked it to end."""
        return self._stop.is_set()

    def status(self) -> RunStatus:
        """The status while it waits; only its files know its progress."""
        return self.progress.status(ledger=LedgerCounts(), live_replicas=0)

    def stop(self, *, keep_progress: bool = True) -> None:
        """End the wait; there is no new progress to keep."""
        self._stop.set()

    async def has_space(self) -> bool:
        """Whether the run can be resumed now."""
        return await self._disk.has_space()

    async def wait(self) -> None:
        """Wait until the run can be resumed, or is asked to end.

        Raises:
            RunFailed: it could not within the deadline.
        """
        space = self._disk.until(LEDGER, self._disk.has_space)
        await race({"disk": space, "run-stop": self._stop.wait()})

    def end(self, state: RunState, detail: str) -> None:
        """The run is not resumed here."""
        tags = {"run": self.progress.run_id}
        for gauge in (RunMetrics.disk_full, RunMetrics.disk_free):
            gauge.forget(tags)
        self.progress.enter(state, detail)
        RunMetrics.ended.inc(1, tags | {"state": str(state)})
