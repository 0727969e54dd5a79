"""How much one key may do: a rate and a number of open requests. Pure."""

import math
from typing import Literal

from services.access.key_ring import ApiKey

Excess = Literal["rate_limited", "too_many_open"]


class KeyLimits:
    """Counts the requests of one key; `now` is a reading of one monotonic clock, seconds.

    Attributes:
        key: its limits; they may be replaced at any time.
        open: requests open now.
    """

    def __init__(self, key: ApiKey, *, now: float) -> None:
        self.key, self.open = key, 0
        self._left, self._at = float(self._burst), now

    def admit(self, now: float) -> tuple[Excess, float] | None:
        """Count a request as open, or say what it is too much of and for how long, seconds."""
        most = self.key.max_open_requests
        if most is not None and self.open >= most:
            return "too_many_open", 1.0
        rate = self.key.requests_per_s
        if rate is not None:
            self._left = min(self._left + (now - self._at) * rate, float(self._burst))
            self._at = now
            if self._left < 1.0:
                return "rate_limited", (1.0 - self._left) / rate
            self._left -= 1.0
        self.open += 1
        return None

    def release(self) -> None:
        """A request that was admitted is over."""
        self.open -= 1

    @property
    def _burst(self) -> int:
        return self.key.burst or max(1, math.ceil(self.key.requests_per_s or 1))
