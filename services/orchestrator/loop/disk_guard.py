"""A run waits for room on its disk: nothing is promised that cannot be written down."""

import asyncio
from collections.abc import Awaitable, Callable

from services.ledger.ledger import Ledger
from services.orchestrator.changes import Changes
from services.orchestrator.loop.run_disk import LEDGER, LONGEST_PAUSE_S, RunDisk


class Room:
    """Holds a run up while its ledger or a checkpoint finds no room.

    Meanwhile no sample group is admitted and no train step begins; what is being sampled and
    scored ends as usual.
    """

    def __init__(self, disk: RunDisk, *, ledger: Ledger, changes: Changes) -> None:
        self._disk = disk
        self._ledger = ledger
        self._changes = changes
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
            await self.until(LEDGER, self._caught_up)

    async def _caught_up(self) -> bool:
        return self._ledger.catch_up()

    async def ledger_written(self) -> None:
        """Until the ledger's file has all that the ledger was told; `watch` has the deadline."""
        while self._ledger.behind:
            await self._changes.after(self._changes.count, LONGEST_PAUSE_S)

    async def summary_fits(self) -> None:
        """Until there is room for the little that is written when a run is over.

        Raises:
            RunFailed: there was none within the deadline.
        """

        async def fits() -> bool:
            return self._ledger.catch_up() and await self._disk.has_room()

        await self.until("the summary", fits)

    async def until(self, what: str, written: Callable[[], Awaitable[bool]]) -> None:
        """See `RunDisk.until`."""
        await self._disk.until(what, written)

    def _fell_behind(self) -> None:
        self._disk.hold(LEDGER)
        self._behind.set()
