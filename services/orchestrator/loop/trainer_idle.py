"""What the trainer of a run waits for while it does no train step, and what slots are used for."""

from collections.abc import Iterator
from contextlib import contextmanager

from services.orchestrator.core.context import RunContext
from services.orchestrator.core.schedule import Schedule
from services.orchestrator.observers.timeline import Timeline
from services.protocol.run.orchestrator import RunState


class TrainerIdle:
    """Tells `IdleTimes` and the timeline, whenever something may have changed.

    Attributes:
        version: that the trainer holds.
    """

    def __init__(self, context: RunContext, schedule: Schedule, timeline: Timeline) -> None:
        self._progress, self._fleet = context.progress, context.fleet
        self._schedule, self._timeline = schedule, timeline
        self._training = False
        self.version = -1

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
        """Something may have changed in what trainer and rollout wait for."""
        working = self._training and not self._progress.no_room
        waits = None if working else self._waits_for()
        slots, capacity = self._schedule.slots, self._schedule.capacity
        self._progress.idle.look(trainer=waits, slots=slots, capacity=capacity)
        self._timeline.trainer_waits(waits)
        self._timeline.slots_are(slots)

    def _waits_for(self) -> str:
        """`rollout`, `score`, `weights` on the replicas, `replicas`, `admission`, `pause`, `room`
        on the disk, or its own `recovery`."""
        if self._progress.no_room:
            return "room"
        if self._progress.paused:
            return "pause"
        if self._progress.state is RunState.RECOVERING:
            return "recovery"
        slots = self._schedule.slots
        if slots.scoring and not self._schedule.lacks_samples(self.version):
            return "score"
        if slots.sampling or slots.scoring:
            return "rollout"
        if self._fleet.live_version is None:
            return "replicas"
        return "weights" if slots.updating else "admission"
