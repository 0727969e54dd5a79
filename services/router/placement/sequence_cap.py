"""How many sequences one replica may have at once, learned from how full its engine is.

What does not fit waits in the router, where it can still go to another replica, and where
turns are fair; an engine's own queue is first come, first served, and final.
"""

from dataclasses import dataclass

from services.router.config import RouterConfig


@dataclass(frozen=True, kw_only=True)
class Pressure:
    """How full an engine is.

    Attributes:
        running: sequences in the batch.
        waiting: sequences in the engine's own queue.
        kv_usage: share of the KV cache that running sequences hold, from 0 to 1.
    """

    running: float
    waiting: float
    kv_usage: float


class SequenceCap:
    """A cap that falls to what the engine really runs and rises in small steps.

    A queue in the engine is pressure when it is longer than what keeps the engine busy
    between two choices, and was so at the last look, too: a large group that has just come
    waits for a moment in any engine.
    """

    def __init__(self, config: RouterConfig) -> None:
        self._config = config
        self._cap = config.max_sequences
        self._pressed = False
        self.seen: Pressure | None = None
        """At the last look at the engine, which was busy then."""

    @property
    def limit(self) -> int:
        """Sequences in flight at which the replica is full."""
        return self._cap

    def observe(self, pressure: Pressure, in_flight: int) -> None:
        """Take a look at the engine, while `in_flight` sequences are counted on it."""
        self.seen = pressure
        slack = max(4.0, pressure.running / 8)
        queued = pressure.waiting > slack
        pressed = queued or pressure.kv_usage > self._config.kv_high
        if pressed and self._pressed and in_flight <= self._cap:
            # Above the cap, the last cut has not taken effect yet: no reason for another.
            goal = pressure.running + slack if queued else in_flight * 0.9
            self._cap = max(self._config.min_sequences, min(self._cap, round(goal)))
        relaxed = pressure.waiting < slack / 2 and pressure.kv_usage < self._config.kv_low
        if relaxed and in_flight >= self._cap:
            self._cap = min(self._config.max_sequences, self._cap + self._config.cap_step)
        self._pressed = pressed
