"""Starts sample groups while there are admission slots for them."""

import asyncio
import time
from collections import deque
from collections.abc import Iterable

from services.ledger.sample_group import LedgerGroup
from services.observability.log import Log
from services.observability.metrics import RunMetrics
from services.orchestrator.core.book import GroupBook
from services.orchestrator.core.context import RunContext
from services.orchestrator.core.events import BatchTaken, Event
from services.orchestrator.core.schedule import Schedule
from services.orchestrator.loop.groups import Groups
from services.orchestrator.loop.trainer_idle import TrainerIdle
from services.orchestrator.tasks.prompts import PromptSource
from services.protocol.router import RouterLoad

RECHECK_S = 5.0
_CUT = 0.8
_RISE = 8  # looks at least from none to one batch
_KV_HIGH, _KV_LOW = 0.9, 0.75
_LOOK_S = 2.0
_log = Log("orchestrator")


class AdmissionWindow:
    """Groups that may be open: never above the schedule's bound, never below one batch.

    Additive increase, multiplicative decrease: w <- max(batch, 0.8 w) under pressure, and
    w <- min(bound, w + batch / 8) when the trainer waits for rollout and the engines have capacity.
    Runs that share replicas so come to equal shares (Chiu and Jain, "Analysis of the
    Increase and Decrease Algorithms for Congestion Avoidance in Computer Networks", 1989,
    section 3). The window is cut only after the cut before has taken effect.
    """

    def __init__(self, *, batch_groups: int, bound: int) -> None:
        self._floor, self._bound = min(batch_groups, bound), bound
        self._step = max(1.0, batch_groups / _RISE)
        self._size = float(bound)
        self._late = False

    @property
    def size(self) -> int:
        """Groups that may be open now."""
        return int(self._size)

    def on(self, event: Event) -> None:
        """See `Observer`.

        A batch as stale as it may be, while others are scored already: groups grow old in
        waiting for the trainer.
        """
        match event:
            case BatchTaken(at_bound=True, ready=ready) if ready:
                self._late = True

    def look(self, load: RouterLoad | None, *, open_groups: int, starving: bool) -> None:
        """Adapt the window to the load of the engines; None if the router does not answer.

        Args:
            load: how full they are.
            open_groups: admitted and not in a batch.
            starving: the trainer waits for rollouts.
        """
        pressed = self._late or (load is not None and _pressed(load))
        if pressed and open_groups <= self._size:
            self._size = max(self._floor, _CUT * self._size)
        elif starving and not pressed and (load is None or _has_capacity(load)):
            self._size = min(self._bound, self._size + self._step)
        self._late = False

    async def follow(self, context: RunContext, schedule: Schedule) -> None:
        """Look at the engines every two seconds, until cancelled."""
        while True:
            RunMetrics.window.set(self.size, context.tags)
            await asyncio.sleep(_LOOK_S)
            before, load = self.size, await context.peers.load(context.config)
            starving = context.progress.idle.trainer_waits_for == "rollout"
            self.look(load, open_groups=schedule.open_groups, starving=starving)
            if self.size != before:
                _log.info("admission_window", **context.tags, groups=self.size, before=before)
                context.changes.notify()


def _pressed(load: RouterLoad) -> bool:
    """Requests wait for replicas, or engines queue (as they do when they preempt), or are full."""
    queued = load.queued > max(4.0 * load.replicas, load.in_flight / 8)
    return load.waiting > 0 or queued or (load.kv_usage or 0.0) > _KV_HIGH


def _has_capacity(load: RouterLoad) -> bool:
    return load.full < load.replicas and (load.kv_usage or 0.0) < _KV_LOW


class Admission:
    """Admits groups that must be rolled out again first, then new prompts.

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
        """Admit groups until cancelled."""
        self._prompts.position = self._book.ledger.next_position()
        try:
            while True:
                seen = self._context.changes.count
                self._admit_what_fits()
                RunMetrics.in_flight.set(self._schedule.in_flight, self._context.tags)
                self._idle.look()
                await self._context.changes.after(seen, RECHECK_S)
        finally:  # what is open now waits for no train step
            RunMetrics.in_flight.set(0, self._context.tags)

    def first(self, again: Iterable[LedgerGroup]) -> None:
        """These groups in flight, and no others, are to be rolled out again."""
        self._again = deque(again)

    def _admit_what_fits(self) -> None:
        fleet, progress = self._context.fleet, self._context.progress
        version = fleet.live_version
        if version is None or progress.held:
            return
        self._book.live(version)
        if self._schedule.bound == 0 and not fleet.settled(progress.trainer_version):
            return
        # A live conversation may go on for hours: the last batches are not to wait for it.
        steps_left = None if self._context.run.is_live else self._context.run.steps - progress.step
        slots = self._schedule.free_slots(steps_left=steps_left)
        slots = max(0, min(slots, self._window.size - self._schedule.open_groups))
        for group in self._next_groups(slots, version):
            self._groups.start(group)
        if slots:
            self.moved_at = time.monotonic()
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
