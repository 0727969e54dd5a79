"""The replicas that requests are sent to, and bounded attempts on them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from services.observability.log import Log
from services.observability.metrics import RouterMetrics
from services.router.config import RouterConfig
from services.router.errors import ENGINE_ERROR, RequestFailed, UpstreamBroken
from services.router.placement.interruptions import INTERRUPTED
from services.router.placement.probes import Probes
from services.router.placement.reservation import Reservation, ReservationRequest
from services.router.placement.reservations import Reservations
from services.router.request.needs import NO_NEEDS, Needs
from services.router.sharing.sharing import ExchangePoint, Sharing
from services.router.upstream.upstream import Upstream
from services.side_by_side import running

_LOG = Log("router")
_LONGEST_PAUSE_S = 10.0
_MOST_DOUBLINGS = 30
_ENGINE_ERRORS = 2
"""Attempts that an engine may end with an error: a fault of one replica, or of the request."""


@dataclass(kw_only=True)
class Replicas:
    """Shared by all requests of one router.

    Attributes:
        config: the router's settings.
        reservations: places on leased replicas.
        upstream: the connections.
        point: where routers tell each other what they do; None: this one is alone.
        probed: whether they have the pages of vLLM that the router looks at.
    """

    config: RouterConfig
    reservations: Reservations
    upstream: Upstream
    point: ExchangePoint | None = None
    probed: bool = True
    _end_tokens: dict[str, set[int]] = field(default_factory=dict)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Hold the connections, watch the bus, look at replicas and keep routers in step."""
        tasks = {"membership": self.reservations.membership.watch()}
        if self.probed:
            tasks["probes"] = Probes(self.config, self.reservations).run()
        if self.point is not None:
            tasks["sharing"] = Sharing(self.config, self.reservations, self.point).run()
        async with AsyncExitStack() as ends:
            await ends.enter_async_context(self.upstream.running())
            ends.callback(self.reservations.queue.stop)
            for name, task in tasks.items():
                await ends.enter_async_context(running(task, name=name))
            yield

    async def ask(
        self,
        path: str,
        body: dict[str, Any] | bytes | None,
        *,
        model: str | None,
        session: str | None = None,
    ) -> Any:
        """POST to replica after replica what any of them can answer, and return the answer.

        Args:
            path: of the replica's; generates nothing.
            body: what is sent; None: it is a GET.
            model: that the replica serves, None for any.
            session: value of the session header.

        Raises:
            RequestFailed: the replicas refuse it, or none answered.
        """
        attempts = Attempts(self.config, self.reservations)
        while True:
            reservation = await attempts.reserve(model, session=session, weight=0)
            try:
                with reservation:
                    return await self.upstream.call(reservation, path, body)
            except UpstreamBroken as broken:
                attempts.note(broken, reservation)

    def end_tokens(self, model: str) -> set[int]:
        """End-of-sequence tokens that the model has shown so far.

        A choice that ends with `stop` and without a stop reason has just shown one.
        """
        return self._end_tokens.setdefault(model, set())


class Attempts:
    """Counts what broke and finds the next replica."""

    def __init__(
        self, config: RouterConfig, reservations: Reservations, needs: Needs = NO_NEEDS
    ) -> None:
        self._config, self._reservations, self._needs = config, reservations, needs
        self._broken = self._engine_errors = 0
        self._avoid: str | None = None

    async def reserve(self, model: str | None, *, session: str | None, weight: int) -> Reservation:
        """A reservation for the next attempt, elsewhere than the last one if possible.

        Raises:
            RequestFailed: see `Reservations.reserve`.
        """
        others = self._reservations.membership.leased(model).keys() - {self._avoid}
        if self._broken and not others:
            doubled = min(self._broken - 1, _MOST_DOUBLINGS)
            await asyncio.sleep(min(self._config.retry_pause_s * 2**doubled, _LONGEST_PAUSE_S))
        request = ReservationRequest(
            model=model,
            session=session,
            weight=weight,
            avoid=self._avoid,
            urgent=self._broken > 0,
            needs=self._needs,
        )
        return await self._reservations.reserve(request)

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
            self._broken = self._engine_errors = 0
        if broken.reason == INTERRUPTED:
            RouterMetrics.interruptions.inc()
            return
        RouterMetrics.failovers.inc(tags={"reason": broken.reason})
        _LOG.warning("request_broken", replica=reservation.replica_id, reason=str(broken))
        self._broken += 1
        self._avoid = reservation.replica_id
        self._engine_errors += broken.reason == ENGINE_ERROR
        if self._engine_errors >= _ENGINE_ERRORS:
            message = f"{self._engine_errors} attempts ended with an error of the engine: {broken}"
            raise RequestFailed(500, ENGINE_ERROR, message)
        if self._broken > self._config.max_retries:
            message = f"given up after {self._broken} attempts; the last one: {broken}"
            raise RequestFailed(503, "upstream_failed", message, retry_after_s=1)
