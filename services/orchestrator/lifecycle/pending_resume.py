"""A run that an orchestrator before this one left open, while its disk is full."""

import asyncio
from pathlib import Path
from typing import Any

from services.observability.metrics import RunMetrics
from services.orchestrator.changes import Changes
from services.orchestrator.config import OrchestratorConfig
from services.orchestrator.core.progress import Progress
from services.orchestrator.loop.run_disk import LEDGER, RunDisk
from services.orchestrator.run_folder.run_directory import RunDirectory
from services.protocol.run.orchestrator import LedgerCounts, RunRequest, RunState, RunStatus


class PendingResume:
    """Its ledger cannot be opened without room; until then this is what is seen of the run."""

    def __init__(self, request: RunRequest, config: OrchestratorConfig) -> None:
        run_id, run = str(request.resume), request.config
        folder = Path(run.run_root) / run_id
        self.progress = Progress(run_id=run_id, run_dir=str(folder), steps=run.steps)
        self._disk = RunDisk(folder, config=config, progress=self.progress, changes=Changes())
        self._stop = asyncio.Event()

    @property
    def stopped(self) -> bool:
        """Somebody asked it to end."""
        return self._stop.is_set()

    def status(self) -> RunStatus:
        """What it waits for; how far it was, its files know."""
        return self.progress.status(ledger=LedgerCounts(), live_replicas=0)

    def trajectories(self, limit: int) -> list[dict[str, Any]]:
        """The newest trajectories kept for people."""
        return RunDirectory(self.progress.run_dir).trajectories(limit)

    def stop(self, *, keep_progress: bool = True) -> None:
        """Wait no more; there is no progress yet that could be kept, or not."""
        self._stop.set()

    async def has_room(self) -> bool:
        """Whether the run can go on now."""
        return await self._disk.has_room()

    async def wait(self) -> None:
        """Until the run can go on, or is asked to end.

        Raises:
            RunFailed: it could not within the deadline.
        """
        room = asyncio.create_task(self._disk.until(LEDGER, self._disk.has_room), name="room")
        stop = asyncio.create_task(self._stop.wait(), name="run-stop")
        try:
            await asyncio.wait({room, stop}, return_when=asyncio.FIRST_COMPLETED)
            if room.done():
                room.result()
        finally:
            for task in (room, stop):
                task.cancel()
            await asyncio.gather(room, stop, return_exceptions=True)

    def end(self, state: RunState, detail: str) -> None:
        """The run does not go on here."""
        tags = {"run": self.progress.run_id}
        for gauge in (RunMetrics.no_room, RunMetrics.disk_free):
            gauge.forget(tags)
        self.progress.enter(state, detail)
        RunMetrics.ended.inc(1, tags | {"state": str(state)})
