"""Health and capacity of one replica, learned from its requests and from how full its engine is.

What does not fit waits in the router, where it can still go to another replica, and where turns are
fair; an engine's own queue is first come, first served, and final."""

from dataclasses import dataclass

from services.router.config import RouterConfig


class ReplicaHealth:
    """What the router has seen of one replica; times are seconds of one monotonic clock.

    A replica that fails `eject_after` times without completing anything gets no work for a
    while, then one trial at a time: a request that goes there. A trial that yields a first
    token brings it back with a share that grows over `slow_start_s`, so that a replica that
    fails fast, and therefore always looks idle, cannot attract the traffic. Until it completes
    something, one more failure ejects it again.
    """

    def __init__(self, config: RouterConfig) -> None:
        self._config = config
        self.cap = SequenceCap(config)
        self._failures = 0
        self._pause_s = 0.0
        self._ejected_until: float | None = None
        self._unreachable = False
        self._trial: object | None = None
        self._returned_at: float | None = None

    def admits(self, now: float) -> bool:
        """Whether the replica may be given a request now."""
        if self._ejected_until is None:
            return True
        return now >= self._ejected_until and self._trial is None

    @property
    def ejected(self) -> bool:
        """Whether it gets no work but a trial."""
        return self._ejected_until is not None

    @property
    def next_chance(self) -> float | None:
        """When an ejected replica may be tried, None if it is not ejected or is being tried."""
        return None if self._trial is not None else self._ejected_until

    def chosen(self) -> object | None:
        """A request goes there; to an ejected replica it is the trial.

        Returns:
            The token that `over` takes at the end of the trial; None if it is none.
        """
        if self._ejected_until is not None:
            self._trial = object()
        return self._trial

    def over(self, trial: object | None) -> None:
        """A request has ended; if it was the trial that runs, another may begin."""
        if trial is self._trial:
            self._trial = None

    def answered(self, now: float) -> None:
        """A first token came: a trial has succeeded."""
        if self._ejected_until is not None:
            self._ejected_until = self._trial = None
            self._returned_at = now
            self._failures = self._config.eject_after - 1

    def completed(self, now: float) -> None:
        """A request was served to its end, with or without a first token on the way."""
        self.answered(now)
        self._failures, self._pause_s = 0, 0.0

    def failed(self, now: float, *, unreachable: bool = False) -> bool:
        """A request broke there, or it could not be reached without one.

        Returns:
            Whether that has ejected the replica; one that was ejected stays so for longer.
        """
        self._failures += 1
        self._unreachable = unreachable
        if self._failures < self._config.eject_after:
            return False
        newly = self._ejected_until is None
        longer = self._pause_s * 2 or self._config.eject_s
        self._pause_s = min(longer, self._config.eject_max_s)
        self._ejected_until = now + self._pause_s
        return newly

    def reached(self, now: float) -> bool:
        """It answers, which says little of whether it serves; of one that did not, enough.

        Returns:
            Whether a request may be tried there from now on, and might not before.
        """
        if self._ejected_until is None or not self._unreachable:
            return False
        self._unreachable, self._ejected_until = False, now
        return True

    def effective_load(self, in_flight: int, now: float) -> float:
        """Sequences in flight, made to look like more during slow start."""
        if self._returned_at is None:
            return float(in_flight)
        share = (now - self._returned_at) / self._config.slow_start_s
        if share >= 1.0:
            self._returned_at = None
            return float(in_flight)
        return (in_flight + 1) / max(share, 0.05)


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
    between two choices, and was so at the last probe, too: a large group that has just come
    waits for a moment in any engine.

    Attributes:
        limit: sequences in flight at which the replica is full.
        seen: what the last probe of the busy engine found.
    """

    def __init__(self, config: RouterConfig) -> None:
        self._config = config
        self.limit = config.max_sequences
        self._pressed = False
        self.seen: Pressure | None = None

    def observe(self, pressure: Pressure, in_flight: int) -> None:
        """Take what a probe found, while `in_flight` sequences are counted on the engine."""
        self.seen = pressure
        slack = max(4.0, pressure.running / 8)
        queued = pressure.waiting > slack
        pressed = queued or pressure.kv_usage > self._config.kv_high
        if pressed and self._pressed and in_flight <= self.limit:
            # Above the cap, the last cut has not taken effect yet: no reason for another.
            goal = pressure.running + slack if queued else in_flight * 0.9
            self.limit = max(self._config.min_sequences, min(self.limit, round(goal)))
        relaxed = pressure.waiting < slack / 2 and pressure.kv_usage < self._config.kv_low
        if relaxed and in_flight >= self.limit:
            self.limit = min(self._config.max_sequences, self.limit + self._config.cap_step)
        self._pressed = pressed
