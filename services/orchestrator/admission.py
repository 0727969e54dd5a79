"""Starts sample groups while there are admission slots for them."""

import time
from collections import deque
from collections.abc import Iterable, Sequence

from services.observability.metrics import RunMetrics
from services.orchestrator.admission_window import AdmissionWindow
from services.orchestrator.changes import Changes
from services.orchestrator.fleet import Fleet
from services.orchestrator.groups import Groups
from services.orchestrator.ledger import Ledger, LedgerGroup, Prompt
from services.orchestrator.progress import Progress
from services.orchestrator.prompts import Order
from services.orchestrator.schedule import Schedule
from services.orchestrator.trainer_idle import TrainerIdle
from services.protocol.orchestrator import RunConfig

RECHECK_S = 5.0


class Admission:
    """Takes what must be rolled out again first, then new prompts.

    Attributes:
        moved_at: when a group was started last, on the monotonic clock.
    """

    def __init__(
        self,
        *,
        run: RunConfig,
        task_ids: Sequence[str],
        prompts: Order,
        ledger: Ledger,
        schedule: Schedule,
        groups: Groups,
        fleet: Fleet,
        progress: Progress,
        changes: Changes,
        window: AdmissionWindow,
        idle: TrainerIdle,
    ) -> None:
        self._steps = run.steps
        self._task_ids = task_ids
        self._prompts = prompts
        self._ledger = ledger
        self._schedule = schedule
        self._groups = groups
        self._fleet = fleet
        self._progress = progress
        self._changes = changes
        self._window = window
        self._idle = idle
        self._tags = {"run": progress.run_id}
        self._again: deque[LedgerGroup] = deque()
        self._position = 0
        self.moved_at = 0.0

    async def run(self) -> None:
        """Admit for ever."""
        self._position = self._ledger.next_position()
        while True:
            seen = self._changes.count
            self._admit_what_fits()
            self._idle.look()
            await self._changes.after(seen, RECHECK_S)

    def first(self, again: Iterable[LedgerGroup]) -> None:
        """These groups in flight, and no others, are to be rolled out again."""
        self._again = deque(again)

    def _admit_what_fits(self) -> None:
        version = self._fleet.live_version
        if version is None or self._progress.held:
            return
        self._schedule.live(version)
        self._groups.traces.live(version)
        if self._schedule.bound == 0 and not self._fleet.settled(self._idle.version):
            return
        slots = self._schedule.free_slots(steps_left=self._steps - self._progress.step)
        slots = max(0, min(slots, self._window.size - self._schedule.open_groups))
        for group in self._next_groups(slots, version):
            self._schedule.admit(group.group_id, version)
            self._groups.start(group)
        if slots:
            self.moved_at = time.monotonic()
            RunMetrics.in_flight.set(self._schedule.open_groups, self._tags)
            RunMetrics.staleness_bound.set(self._schedule.bound, self._tags)

    def _next_groups(self, slots: int, version: int) -> list[LedgerGroup]:
        """Groups to roll out again first, then new prompts."""
        groups: list[LedgerGroup] = []
        while self._again and len(groups) < slots:
            group = self._again.popleft()
            self._ledger.restart(group.group_id, version=version)
            groups.append(group)
        fresh = [self._next_prompt() for _ in range(slots - len(groups))]
        if fresh:
            groups += self._ledger.admit(fresh, version=version)
        return groups

    def _next_prompt(self) -> Prompt:
        place = self._prompts.next(self._position)
        self._position = place.position + 1
        return Prompt(
            position=place.position, epoch=place.epoch, task_id=self._task_ids[place.index]
        )
