"""How many workspaces may be open, and how fast they may be started."""

import time
from collections import Counter
from collections.abc import Callable

from services.reward_service.workspaces.config import WorkspacesConfig
from services.reward_service.workspaces.errors import QuotaFull

_CLOSING_S = 5.0
"""After which a caller may look again for a place, which only the end of a workspace makes."""


class Quotas:
    """Counts what is open by owner, starts included, and spaces starts with a token bucket.

    Args:
        config: the limits.
        now: a clock in seconds.
    """

    def __init__(self, config: WorkspacesConfig, now: Callable[[], float] = time.monotonic) -> None:
        self._config, self._now = config, now
        self._open: Counter[str] = Counter()
        self._starts, self._at = float(config.starts_at_once), now()

    @property
    def open(self) -> int:
        """Workspaces that are open or being started."""
        return self._open.total()

    def take(self, owner: str) -> float:
        """Count one more for this owner, and a start.

        Returns:
            Seconds to wait before the start.

        Raises:
            QuotaFull: with the seconds until it may be tried again.
        """
        config = self._config
        if self._open[owner] >= config.per_key:
            reason = f"this key has {config.per_key} workspaces open (per_key): close some"
            raise QuotaFull(reason, retry_after_s=_CLOSING_S)
        if self.open >= config.max_open:
            reason = f"{config.max_open} workspaces are open here (max_open)"
            raise QuotaFull(reason, retry_after_s=_CLOSING_S)
        now = self._now()
        gained = (now - self._at) * config.starts_per_s
        self._starts, self._at = min(float(config.starts_at_once), self._starts + gained), now
        wait_s = max(0.0, (1.0 - self._starts) / config.starts_per_s)
        if wait_s > config.start_wait_s:
            reason = f"more workspaces are asked for than {config.starts_per_s:g} a second"
            raise QuotaFull(reason, retry_after_s=wait_s)
        self._starts -= 1.0
        self._open[owner] += 1
        return wait_s

    def give_back(self, owner: str) -> None:
        """Count one less for this owner."""
        self._open[owner] -= 1
        if not self._open[owner]:
            del self._open[owner]
