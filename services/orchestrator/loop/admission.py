"""Starts sample groups while there are admission slots for them."""

import time
from collections import deque
from collections.abc import Iterable

from services.ledger.sample_group import LedgerGroup
from services.observability.metrics import RunMetrics
from services.orchestrator.core.book import GroupBook
from services.orchestrator.core.context import RunContext
from services.orchestrator.loop.groups import Groups
from services.orchestrator.loop.trainer_idle import TrainerIdle
from services.orchestrator.observers.admission_window import AdmissionWindow
from services.orchestrator.tasks.prompt_source import PromptSource

RECHECK_S = 5.0


class Admission:
    """Takes what must be rolled out again first, then new prompts.

    Attributes:
        moved_at: when a group was started last, on the monotonic clock.
    """

    def __init__(
        self,
        context: RunContext,
        book: GroupBook,
        groups: Groups,
        *,
        prompts: PromptSource,
        window: AdmissionWindow,
        idle: TrainerIdle,
    ) -> None:
        self._context, self._book, self._schedule = context, book, book.schedule
        self._groups, self._prompts, self._window, self._idle = groups, prompts, window, idle
        self._again: deque[LedgerGroup] = deque()
        self.moved_at = 0.0

    async def run(self) -> None:
        """Admit for ever."""
        self._prompts.position = self._book.ledger.next_position()
        while True:
            seen = self._context.changes.count
            self._admit_what_fits()
            self._idle.look()
            await self._context.changes.after(seen, RECHECK_S)

    def first(self, again: Iterable[LedgerGroup]) -> None:
        """These groups in flight, and no others, are to be rolled out again."""
        self._again = deque(again)

    def _admit_what_fits(self) -> None:
        version = self._context.fleet.live_version
        if version is None or self._context.progress.held:
            return
        self._book.live(version)
        if self._schedule.bound == 0 and not self._context.fleet.settled(self._idle.version):
            return
        slots = self._schedule.free_slots(
            steps_left=self._context.run.steps - self._context.progress.step
        )
        slots = max(0, min(slots, self._window.size - self._schedule.open_groups))
        for group in self._next_groups(slots, version):
            self._groups.start(group)
        if slots:
            self.moved_at = time.monotonic()
            RunMetrics.in_flight.set(self._schedule.open_groups, self._context.tags)
            RunMetrics.staleness_bound.set(self._schedule.bound, self._context.tags)

    def _next_groups(self, slots: int, version: int) -> list[LedgerGroup]:
        """Groups to roll out again first, then new prompts."""
        groups: list[LedgerGroup] = []
        while self._again and len(groups) < slots:
            group = self._again.popleft()
            self._book.admit_again(group, version)
            groups.append(group)
        fresh = [self._prompts.next() for _ in range(slots - len(groups))]
        return groups + self._book.admit(fresh, version)
