"""A seat: one request's place on one leased replica, counted from choice to end."""

import asyncio
import time
from types import TracebackType
from typing import Self

from services.observability.metrics import RouterMetrics
from services.protocol.weight_bus import Member
from services.router.choice import ChoiceKind, ReplicaChooser
from services.router.config import RouterConfig
from services.router.errors import RequestFailed, UpstreamBroken
from services.router.membership import Membership, TableSource

_NO_FAULT = ("lease_lost", "abort")
"""Ends of a request that say nothing of the replica's health."""


class Seat:
    """A place on a replica; used as a context manager that gives it back.

    Attributes:
        replica_id: the replica.
        address: its `http://host:port`.
        model: the model it serves.
        kind: why this replica was chosen.
    """

    def __init__(self, seats: "Seats", member: Member, kind: ChoiceKind, weight: int) -> None:
        self.replica_id, self.address, self.model = member.replica_id, member.address, member.model
        self.kind = kind
        self._seats, self._weight = seats, weight
        self._waiting: asyncio.Timeout | None = None
        self._lost = False
        self._answered = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._seats.give_back(self, self._weight, error)

    def check_lease(self) -> None:
        """To be called right before work is sent.

        Raises:
            UpstreamBroken: the replica's lease has ended since it was chosen.
        """
        if self._lost or not self._seats.membership.holds_lease(self.replica_id):
            raise UpstreamBroken("lease_lost", self.replica_id)

    def answered(self) -> None:
        """The first token has come."""
        if not self._answered:
            self._answered = True
            self._seats.chooser.health(self.replica_id).answered(time.monotonic())

    def limit(self, seconds: float) -> "_Limit":
        """A deadline for one wait on the replica, cut short when the replica is lost."""
        return _Limit(self, seconds)

    def lose(self) -> None:
        """The replica is gone: break the wait in progress and allow no other."""
        self._lost = True
        if self._waiting is not None and not self._waiting.expired():
            self._waiting.reschedule(asyncio.get_running_loop().time())


class _Limit:
    """`asyncio.timeout` that says which of the two happened."""

    def __init__(self, seat: Seat, seconds: float) -> None:
        self._seat, self._seconds = seat, seconds

    async def __aenter__(self) -> None:
        if self._seat._lost:
            raise UpstreamBroken("lease_lost", self._seat.replica_id)
        self._timeout = asyncio.timeout(self._seconds)
        await self._timeout.__aenter__()
        self._seat._waiting = self._timeout

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._seat._waiting = None
        try:
            await self._timeout.__aexit__(kind, error, trace)
        except TimeoutError:
            if self._seat._lost:
                raise UpstreamBroken("lease_lost", self._seat.replica_id) from None
            raise UpstreamBroken("stalled", f"nothing for {self._seconds:g} s") from None


class Seats:
    """Gives out seats on leased replicas and knows all that are taken."""

    def __init__(self, config: RouterConfig, bus: TableSource) -> None:
        self._config = config
        self._taken: dict[str, set[Seat]] = {}
        self._shown: set[str] = set()
        self.chooser = ReplicaChooser(config)
        self.membership = Membership(bus, config, on_gone=self._lose, on_news=self._show)

    async def take(
        self, model: str | None, *, session: str | None, weight: int, avoid: str | None = None
    ) -> Seat:
        """Wait for a leased replica that serves `model` and take a seat there.

        Args:
            model: served model name, None for any.
            session: value of the session header.
            weight: sequences the request will run at once.
            avoid: a replica to leave out while another one can be had.

        Raises:
            RequestFailed: 404 when members are known and none serves the model; 503 when
                no lease came in time.
        """
        deadline = time.monotonic() + self._config.lease_wait_s
        while True:
            self._check_model(model)
            seat = self._try(model, session, weight, avoid)
            if seat is not None:
                return seat
            now = time.monotonic()
            if now >= deadline:
                RouterMetrics.unleased_refusals.inc()
                waited = f"no replica held a lease within {self._config.lease_wait_s:g} s"
                raise RequestFailed(503, "no_lease", waited, retry_after_s=1)
            chance = self.chooser.next_chance(list(self.membership.leased(model)))
            until = deadline if chance is None else min(deadline, max(chance, now + 0.001))
            await self.membership.wait_for_change(until - now)

    def _try(
        self, model: str | None, session: str | None, weight: int, avoid: str | None
    ) -> Seat | None:
        leased = self.membership.leased(model)
        candidates = [replica for replica in leased if replica != avoid] or list(leased)
        choice = self.chooser.choose(
            candidates, session=session, weight=weight, now=time.monotonic()
        )
        if choice is None:
            return None
        RouterMetrics.choices.inc(tags={"kind": choice.kind})
        seat = Seat(self, leased[choice.replica_id], choice.kind, weight)
        self._taken.setdefault(choice.replica_id, set()).add(seat)
        return seat

    def _check_model(self, model: str | None) -> None:
        served = {member.model for member in self.membership.members.values()}
        if model is not None and served and model not in served:
            message = f"the model {model!r} does not exist; served: {', '.join(sorted(served))}"
            raise RequestFailed(404, "model_not_found", message, param="model")

    def give_back(self, seat: Seat, weight: int, error: BaseException | None) -> None:
        """Count a seat as free and remember how its request ended."""
        self.chooser.release(seat.replica_id, weight)
        seats = self._taken.get(seat.replica_id, set())
        seats.discard(seat)
        if not seats:
            self._taken.pop(seat.replica_id, None)
        health = self.chooser.health(seat.replica_id)
        if error is None:
            health.completed()
        elif isinstance(error, UpstreamBroken) and error.reason not in _NO_FAULT:
            health.failed(time.monotonic())
        else:
            # A lease ends, and a weight update aborts, for the bus's reasons.
            health.released()

    def _lose(self, gone: set[str]) -> None:
        for replica in gone:
            for seat in list(self._taken.get(replica, ())):
                seat.lose()

    def _show(self) -> None:
        self.chooser.keep_only(set(self.membership.members) | set(self._taken))
        RouterMetrics.sessions.set(self.chooser.sessions)
        current = set(self.membership.members)
        for replica in current:
            tags = {"replica": replica}
            RouterMetrics.in_flight.set(self.chooser.in_flight(replica), tags)
        for replica in self._shown - current:
            RouterMetrics.in_flight.forget({"replica": replica})
        self._shown = current
