"""Where the time goes between the start of a rollout server and its first request."""

import time
from enum import StrEnum

from services.observability.log import Log
from services.observability.metrics import RolloutMetrics

log = Log("rollout_server")


class StartPhase(StrEnum):
    """What a rollout server does one after another; the lease itself is the bus's to log."""

    IMPORTS = "imports"
    ENGINE_CONFIG = "engine_config"
    ENGINE = "engine"
    """Its processes, the model without weights, the KV cache."""
    HTTP_APP = "http_app"
    REGISTRATION = "registration"
    FIRST_WEIGHTS = "first_weights"


class StartUp:
    """A clock that is read at the end of every phase.

    Args:
        replica_id: for log and metric.
        began_at: `time.monotonic()` when the first phase began; None: now.
    """

    def __init__(self, replica_id: str, began_at: float | None = None) -> None:
        self._replica_id = replica_id
        self._began_at = time.monotonic() if began_at is None else began_at
        self._last_at = self._began_at
        self.seconds: dict[StartPhase, float] = {}

    def reached(self, phase: StartPhase) -> None:
        """The phase is over; what comes again later (a registration, weights) is not counted."""
        if phase in self.seconds:
            return
        now = time.monotonic()
        self.seconds[phase], self._last_at = now - self._last_at, now
        RolloutMetrics.start_up.set(
            self.seconds[phase], {"replica": self._replica_id, "phase": phase}
        )
        log.info(
            "start-up",
            replica=self._replica_id,
            phase=phase,
            seconds=round(self.seconds[phase], 3),
            total_s=round(now - self._began_at, 3),
        )
