"""Bounded attempts: how often, where and when broken work is tried again."""

import asyncio

from services.observability.log import Log
from services.observability.metrics import RouterMetrics
from services.router.config import RouterConfig
from services.router.errors import RequestFailed, UpstreamBroken
from services.router.placement.interruptions import INTERRUPTED
from services.router.placement.reservation import Reservation
from services.router.placement.reservations import Reservations
from services.router.request.needs import NO_NEEDS, Needs

_LOG = Log("router")
_LONGEST_PAUSE_S = 10.0
_MOST_DOUBLINGS = 30


class Attempts:
    """Counts what broke and finds the next replica."""

    def __init__(
        self, config: RouterConfig, reservations: Reservations, needs: Needs = NO_NEEDS
    ) -> None:
        self._config, self._reservations, self._needs = config, reservations, needs
        self._broken = 0
        self._avoid: str | None = None

    def copy(self) -> "Attempts":
        """Independent attempts that remember what broke so far."""
        other = Attempts(self._config, self._reservations, self._needs)
        other._broken, other._avoid = self._broken, self._avoid
        return other

    async def reserve(self, model: str | None, *, session: str | None, weight: int) -> Reservation:
        """A reservation for the next attempt, elsewhere than the last one if possible.

        Raises:
            RequestFailed: see `Reservations.reserve`.
        """
        others = self._reservations.membership.leased(model).keys() - {self._avoid}
        if self._broken and not others:
            doubled = min(self._broken - 1, _MOST_DOUBLINGS)
            await asyncio.sleep(min(self._config.retry_pause_s * 2**doubled, _LONGEST_PAUSE_S))
        return await self._reservations.reserve(
            model,
            session=session,
            weight=weight,
            avoid=self._avoid,
            urgent=self._broken > 0,
            needs=self._needs,
        )

    def note(
        self, broken: UpstreamBroken, reservation: Reservation, *, progressed: bool = False
    ) -> None:
        """Count a break; one that came after new tokens is the first of a new row.

        An answer of hours may meet many weight updates and many deaths, and each finds it
        further than the one before. What was interrupted on purpose counts for nothing.

        Raises:
            RequestFailed: it was the last allowed attempt.
        """
        if progressed:
            self._broken = 0
        if broken.reason == INTERRUPTED:
            RouterMetrics.interruptions.inc()
            return
        RouterMetrics.failovers.inc(tags={"reason": broken.reason})
        _LOG.warning("request_broken", replica=reservation.replica_id, reason=str(broken))
        self._broken += 1
        self._avoid = reservation.replica_id
        if self._broken > self._config.max_retries:
            message = f"given up after {self._broken} attempts; the last one: {broken}"
            raise RequestFailed(503, "upstream_failed", message, retry_after_s=1)
