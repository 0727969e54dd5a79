"""A run waits for room on its disk: nothing is promised that cannot be written down."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from services.disk import free_bytes, has_room
from services.observability.log import Log
from services.observability.metrics import RunMetrics
from services.orchestrator.changes import Changes
from services.orchestrator.config import OrchestratorConfig
from services.orchestrator.ledger import Ledger
from services.orchestrator.progress import Progress
from services.orchestrator.recovery import RunFailed

_LONGEST_PAUSE_S = 30.0
_LEDGER = "the ledger"
_log = Log("orchestrator")


class Room:
    """Holds a run up while its ledger or a checkpoint finds no room.

    Meanwhile no sample group is admitted and no train step begins; what is being sampled and
    scored ends as usual. `Progress.no_room` says so to people.
    """

    def __init__(
        self,
        folder: Path,
        *,
        ledger: Ledger,
        config: OrchestratorConfig,
        progress: Progress,
        changes: Changes,
    ) -> None:
        self._folder = folder
        self._ledger = ledger
        self._patience_s = config.room_timeout_s
        self._pause_s = config.backoff_s
        self._progress = progress
        self._changes = changes
        self._tags = {"run": progress.run_id}
        self._waiting: dict[str, float] = {}  # what for, and until when
        self._behind = asyncio.Event()
        ledger.when_behind(self._fell_behind)

    async def watch(self) -> None:
        """Have the ledger's file catch up whenever it falls behind, for ever.

        Raises:
            RunFailed: it found no room within the deadline.
        """
        while True:
            await self._behind.wait()
            self._behind.clear()
            await self.until(_LEDGER, self._caught_up)

    async def _caught_up(self) -> bool:
        return self._ledger.catch_up()

    async def ledger_written(self) -> None:
        """Until the ledger's file has all that the ledger was told; `watch` has the deadline."""
        while self._ledger.behind:
            await self._changes.after(self._changes.count, _LONGEST_PAUSE_S)

    async def summary_fits(self) -> None:
        """Until there is room for the little that is written when a run is over.

        Raises:
            RunFailed: there was none within the deadline.
        """

        async def fits() -> bool:
            return self._ledger.catch_up() and await asyncio.to_thread(has_room, self._folder)

        await self.until("the summary", fits)

    async def until(self, what: str, written: Callable[[], Awaitable[bool]]) -> None:
        """Hold the run up until this is written; tried again and again, ever less often.

        Raises:
            RunFailed: there was no room for it within the deadline.
        """
        pause, deadline = self._pause_s, time.monotonic() + self._patience_s
        try:
            while not await written():
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    raise RunFailed(self._given_up(what))
                self._hold(what, deadline)
                await asyncio.sleep(min(pause, left_s))
                pause = min(2 * pause, _LONGEST_PAUSE_S)
        finally:
            self._waiting.pop(what, None)
            self._show()

    def _fell_behind(self) -> None:
        self._hold(_LEDGER, time.monotonic() + self._patience_s)
        self._behind.set()

    def _hold(self, what: str, deadline: float) -> None:
        self._waiting[what] = deadline
        self._show()

    def _show(self) -> None:
        """Say what waits, in the run's status, its metrics and, when that changes, its log."""
        shown, held = bool(self._progress.no_room), bool(self._waiting)
        free = free_bytes(self._folder)
        self._progress.no_room = ""
        if held:
            left_s = max(0.0, min(self._waiting.values()) - time.monotonic())
            self._progress.no_room = (
                f"no room for {' and '.join(self._waiting)}: {free} bytes are free at "
                f"{self._folder}. The run goes on by itself when there is room, and waits for it "
                f"{left_s:.0f} s more at most"
            )
        if held == shown:
            return
        RunMetrics.no_room.set(float(held), self._tags)
        RunMetrics.disk_free.set(free, self._tags)
        _log.warning("waits_for_room" if held else "waits_no_more", **self._tags, free=free)
        self._changes.notify()

    def _given_up(self, what: str) -> str:
        free = free_bytes(self._folder)
        return (
            f"no room for {what} in {self._patience_s:g} s: {free} bytes are free at "
            f"{self._folder}. Make room there, then `millrace run RUN.yaml --resume "
            f"{self._progress.run_id}`: what was written is kept"
        )
