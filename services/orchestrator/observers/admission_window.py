"""How many sample groups may be open, following how full the engines are and how stale batches."""

import asyncio
from collections.abc import Awaitable, Callable

from services.observability.log import Log
from services.observability.metrics import RunMetrics
from services.orchestrator.core.events import BatchTaken, Event
from services.protocol.router import RouterLoad

_CUT = 0.8
_RISE = 8  # looks at least from none to one batch
_KV_HIGH, _KV_LOW = 0.9, 0.75
_LOOK_S = 2.0
_log = Log("orchestrator")


class AdmissionWindow:
    """Groups that may be open: never above the schedule's bound, never below one batch.

    Additive increase, multiplicative decrease: w <- max(batch, 0.8 w) under pressure, and
    w <- min(bound, w + batch / 8) when the trainer waits for rollout and the engines have room.
    Whoever shares the replicas so comes to equal shares (Chiu and Jain, "Analysis of the
    Increase and Decrease Algorithms for Congestion Avoidance in Computer Networks", 1989,
    section 3). A cut is made only after the one before it has taken effect.
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
        """Take a look at the engines; None where nothing is known of them.

        Args:
            load: how full they are.
            open_groups: admitted and not in a batch.
            starving: the trainer waits for rollouts.
        """
        pressed = self._late or (load is not None and _pressed(load))
        if pressed and open_groups <= self._size:
            self._size = max(self._floor, _CUT * self._size)
        elif starving and not pressed and (load is None or _has_room(load)):
            self._size = min(self._bound, self._size + self._step)
        self._late = False


def _pressed(load: RouterLoad) -> bool:
    """Requests wait for room, or engines queue (as they do when they preempt), or are full."""
    queued = load.queued > max(4.0 * load.replicas, load.in_flight / 8)
    return load.waiting > 0 or queued or (load.kv_usage or 0.0) > _KV_HIGH


def _has_room(load: RouterLoad) -> bool:
    return load.full < load.replicas and (load.kv_usage or 0.0) < _KV_LOW


async def follow(
    window: AdmissionWindow,
    *,
    load: Callable[[], Awaitable[RouterLoad | None]],
    open_groups: Callable[[], int],
    starving: Callable[[], bool],
    run_id: str,
    changed: Callable[[], None],
) -> None:
    """Look at the engines every two seconds, until cancelled; `changed` hears of a new size."""
    while True:
        RunMetrics.window.set(window.size, {"run": run_id})
        await asyncio.sleep(_LOOK_S)
        before, now = window.size, await load()
        window.look(now, open_groups=open_groups(), starving=starving())
        if window.size != before:
            _log.info("admission_window", run=run_id, groups=window.size, before=before)
            changed()
