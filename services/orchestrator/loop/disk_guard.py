"""A run waits while its disk is full: nothing is promised that cannot be written down."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from services.changes import Changes
from services.disk import free_bytes, has_space
from services.ledger.ledger import Ledger
from services.observability.log import Log
from services.observability.metrics import RunMetrics
from services.orchestrator.config import OrchestratorConfig
from services.orchestrator.core.progress import Progress
from services.orchestrator.loop.recovery import RunFailed

LEDGER = "the ledger"
_LONGEST_PAUSE_S = 30.0
_log = Log("orchestrator")


class DiskGuard:
    """Holds a run up while its disk is full, and says so in `Progress.disk_full`.

    Meanwhile no sample group is admitted and no train step begins; rollouts and scores in
    progress end as usual.
    """

    def __init__(
        self, folder: Path, *, config: OrchestratorConfig, progress: Progress, changes: Changes
    ) -> None:
        self._folder = folder
        self._timeout_s = config.disk_full_timeout_s
        self._pause_s = config.backoff_s
        self._progress, self._changes = progress, changes
        self._tags = {"run": progress.run_id}
        self._waiting: dict[str, float] = {}  # deadline by what has to be written
        self._behind = asyncio.Event()

    async def has_space(self) -> bool:
        """Whether a little more can be written there now."""
        return await asyncio.to_thread(has_space, self._folder)

    async def watch(self, ledger: Ledger) -> None:
        """Have the ledger's file catch up whenever it falls behind, until cancelled.

        Raises:
            RunFailed: it found no space within the deadline.
        """

        async def caught_up() -> bool:
            return ledger.catch_up()

        ledger.fell_behind = self._fell_behind
        while True:
            await self._behind.wait()
            self._behind.clear()
            await self.until(LEDGER, caught_up)

    def _fell_behind(self) -> None:
        self._hold(LEDGER, time.monotonic() + self._timeout_s)
        self._behind.set()

    async def ledger_written(self, ledger: Ledger) -> None:
        """Wait until the ledger's file has every transaction; `watch` has the deadline."""
        while ledger.behind:
            await self._changes.after(self._changes.count, _LONGEST_PAUSE_S)

    async def summary_fits(self, ledger: Ledger) -> None:
        """Wait until there is space for the little that is written when a run is over.

        Raises:
            RunFailed: there was none within the deadline.
        """

        async def fits() -> bool:
            return ledger.catch_up() and await self.has_space()

        await self.until("the summary", fits)

    async def until(self, what: str, written: Callable[[], Awaitable[bool]]) -> None:
        """Hold the run up until this is written; tried again and again, ever less often.

        Raises:
            RunFailed: there was no space for it within the deadline.
        """
        pause, deadline = self._pause_s, time.monotonic() + self._timeout_s
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

    def _hold(self, what: str, deadline: float) -> None:
        self._waiting[what] = deadline
        self._show()

    def _show(self) -> None:
        """Say what waits, in the run's status, its metrics and, when that changes, its log."""
        shown, held = bool(self._progress.disk_full), bool(self._waiting)
        free = free_bytes(self._folder)
        self._progress.disk_full = ""
        if held:
            left_s = max(0.0, min(self._waiting.values()) - time.monotonic())
            self._progress.disk_full = (
                f"no disk space for {' and '.join(self._waiting)}: {free} bytes are free at "
                f"{self._folder}. The run goes on by itself when there is space, and waits "
                f"{left_s:.0f} s more at most"
            )
        if held == shown:
            return
        RunMetrics.disk_full.set(float(held), self._tags)
        RunMetrics.disk_free.set(free, self._tags)
        _log.warning("disk_full" if held else "disk_has_space", **self._tags, free=free)
        self._changes.notify()

    def _given_up(self, what: str) -> str:
        free = free_bytes(self._folder)
        return (
            f"no disk space for {what} in {self._timeout_s:g} s: {free} bytes are free at "
            f"{self._folder}. Free some, then `millrace run RUN.yaml --resume "
            f"{self._progress.run_id}`: what was written is kept"
        )
