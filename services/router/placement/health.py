"""Passive health of a replica: ejection, trial, slow start."""

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
