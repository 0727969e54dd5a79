"""Idle seconds of trainer and rollout by cause."""

import time
from collections.abc import Mapping

from services.observability.metrics import RunMetrics
from services.orchestrator.core.events import Event, Idle
from services.orchestrator.core.schedule import Slots

_COUNT_S = 1.0


class IdleTimes:
    """Sums up idle time between looks; an interval counts for the cause at its beginning.

    The trainer is idle while it does no train step. Of the rollout, the share of admission
    slots in which nothing is being sampled is idle: a batch's last straggler alone leaves
    nearly all of it idle, though no engine stands still.

    The metric grows within a train step, too: a step may be longer than the window of a query.

    Args:
        run_id: the run.
    """

    def __init__(self, run_id: str) -> None:
        self._tags = {"run": run_id}
        self._counted: dict[tuple[str, str], float] = {}
        self._count_at = 0.0
        self._since: float | None = None
        self._now: dict[str, Mapping[str, float]] = {}
        self._step: dict[str, dict[str, float]] = {"trainer": {}, "rollout": {}}
        self._total: dict[str, dict[str, float]] = {"trainer": {}, "rollout": {}}
        self._elapsed_s = 0.0

    def on(self, event: Event) -> None:
        """See `Observer`."""
        match event:
            case Idle(trainer=trainer, slots=slots, capacity=capacity):
                self.look(trainer=trainer, slots=slots, capacity=capacity)

    def look(self, *, trainer: str | None, slots: Slots, capacity: int) -> None:
        """From now on the trainer waits for this; None: it trains."""
        now = time.monotonic()
        self._add(0.0 if self._since is None else now - self._since)
        self._since = now
        if now >= self._count_at:
            self._count_at = now + _COUNT_S
            self._count()
        self._now = {
            "trainer": {trainer: 1.0} if trainer else {},
            "rollout": idle_slots(slots, capacity),
        }

    def _add(self, seconds: float) -> None:
        self._elapsed_s += seconds
        for side, causes in self._now.items():
            for cause, share in causes.items():
                for sums in (self._step[side], self._total[side]):
                    sums[cause] = sums.get(cause, 0.0) + seconds * share

    def _count(self) -> None:
        """Bring the metric to what is summed up."""
        for side, causes in self._total.items():
            for cause, spent in causes.items():
                fresh = spent - self._counted.get((side, cause), 0.0)
                RunMetrics.idle.inc(fresh, self._tags | {"side": side, "cause": cause})
                self._counted[side, cause] = spent

    @property
    def trainer_waits_for(self) -> str | None:
        """The cause for which the trainer waits now, None while it trains."""
        return next(iter(self._now.get("trainer", {})), None)

    def waited_s(self, cause: str) -> float:
        """Seconds in which the trainer waited for this, until the newest look."""
        return self._total["trainer"].get(cause, 0.0)

    def take(self) -> dict[str, dict[str, float]]:
        """Idle seconds by side and cause since the last call."""
        self._count()
        taken = {side: dict(causes) for side, causes in self._step.items()}
        for causes in self._step.values():
            causes.clear()
        return taken

    @property
    def shares(self) -> dict[str, dict[str, float]]:
        """Idle shares of all time so far, by side and cause."""
        if not self._elapsed_s:
            return {}
        return {
            side: {cause: round(spent / self._elapsed_s, 4) for cause, spent in causes.items()}
            for side, causes in self._total.items()
        }


def idle_slots(slots: Slots, capacity: int) -> dict[str, float]:
    """Shares of the slots that sample nothing, by cause.

    `weights`: the weights trained on them are not live; `trainer`: they are being trained;
    `score`: they are being scored; `batch`: they wait for their batch; `admission`: they are
    free.
    """
    left = max(0, capacity - slots.sampling)
    shares = {}
    for cause, used in (
        ("weights", slots.updating),
        ("trainer", slots.training),
        ("score", slots.scoring),
        ("batch", slots.ready),
    ):
        if counted := min(left, used):
            shares[cause] = counted / capacity
            left -= counted
    return shares | ({"admission": left / capacity} if left else {})
