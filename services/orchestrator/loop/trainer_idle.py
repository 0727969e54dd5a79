"""The cause for which the trainer waits between train steps."""

from collections.abc import Iterator
from contextlib import contextmanager

from services.orchestrator.core.book import GroupBook
from services.orchestrator.core.context import RunContext
from services.protocol.run.orchestrator import RunState


class TrainerIdle:
    """Reports to the book what the trainer waits for, whenever that may have changed."""

    def __init__(self, context: RunContext, book: GroupBook) -> None:
        self._progress, self._fleet = context.progress, context.fleet
        self._book, self._schedule = book, book.schedule
        self._training = False

    @contextmanager
    def busy(self) -> Iterator[None]:
        """The trainer has work."""
        self._training = True
        self.look()
        try:
            yield
        finally:
            self._training = False
            self.look()

    def look(self) -> None:
        """Report what the trainer waits for now."""
        working = self._training and not self._progress.disk_full
        self._book.trainer_waits_for(None if working else self._waits_for())

    def _waits_for(self) -> str:
        """`rollout`, `score`, `weights` on the replicas, `replicas`, `admission`, `pause`, `disk`,
        or its own `recovery`."""
        if self._progress.disk_full:
            return "disk"
        if self._progress.paused:
            return "pause"
        if self._progress.state is RunState.RECOVERING:
            return "recovery"
        slots = self._schedule.slots
        if slots.scoring and not self._schedule.lacks_samples(self._progress.trainer_version):
            return "score"
        if slots.sampling or slots.scoring:
            return "rollout"
        if self._fleet.live_version is None:
            return "replicas"
        return "weights" if slots.updating else "admission"
