"""A reservation: capacity of one leased replica for one request, counted from choice to end."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from services.protocol.weights.weight_bus import Member
from services.router.errors import UpstreamBroken
from services.router.placement.choice import Choice
from services.router.placement.membership import Membership
from services.router.request.needs import NO_NEEDS, Needs


@dataclass(frozen=True, kw_only=True)
class ReservationRequest:
    """What a request wants reserved.

    Attributes:
        model: served model name, None for any.
        session: value of the session header.
        weight: sequences the request will run at once.
        avoid: a replica to leave out while another one can be had.
        urgent: it goes on with an answer that was begun, ahead of all new ones.
        needs: what else the request needs.
    """

    model: str | None
    session: str | None
    weight: int
    avoid: str | None = None
    urgent: bool = False
    needs: Needs = NO_NEEDS

    @property
    def place(self) -> tuple[str | None, int | None]:
        """Those with one place could all be given the same replicas, so they share a queue."""
        return self.model, self.needs.min_version


class _Reservations(Protocol):
    """All open reservations, which one reservation tells what becomes of it."""

    membership: Membership

    def answered(self, reservation: "Reservation") -> None:
        """The first token of a reservation has come."""

    def shrunk(self, reservation: "Reservation") -> None:
        """One of several sequences of a reservation has ended."""

    def give_back(
        self, reservation: "Reservation", weight: int, error: BaseException | None
    ) -> None:
        """A reservation is over, and so is its request, with this error."""


class Reservation:
    """A place on a replica; used as a context manager that gives it back.

    Attributes:
        replica_id: the replica.
        address: its `http://host:port`.
        model: the model it serves.
        max_model_len: its longest prompt plus answer, tokens; 0: not known.
        kind: why this replica was chosen.
        trial: see `Choice`.
        session: value of the request's session header.
    """

    def __init__(
        self,
        reservations: "_Reservations",
        member: Member,
        choice: Choice,
        request: ReservationRequest,
    ) -> None:
        self.replica_id, self.address, self.model = member.replica_id, member.address, member.model
        self.max_model_len = member.max_model_len
        self.kind, self.trial = choice.kind, choice.trial
        self._reservations, self._weight = reservations, request.weight
        self.session = request.session
        self._waiting: asyncio.Timeout | None = None
        self._break_stream: Callable[[UpstreamBroken], None] | None = None
        self._lost = ""
        self._answered = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._reservations.give_back(self, self._weight, error)

    def check_lease(self) -> None:
        """To be called right before work is sent.

        Raises:
            UpstreamBroken: the replica's lease has ended since it was chosen.
        """
        if self._lost or not self._reservations.membership.holds_lease(self.replica_id):
            raise UpstreamBroken(self._lost or "lease_lost", self.replica_id)

    def answered(self) -> None:
        """The first token has come."""
        if not self._answered:
            self._answered = True
            self._reservations.answered(self)

    def shrink(self) -> None:
        """One of the request's sequences has ended; the last one ends with the reservation."""
        if self._weight > 1:
            self._weight -= 1
            self._reservations.shrunk(self)

    @asynccontextmanager
    async def limit(self, seconds: float) -> AsyncIterator[None]:
        """A deadline for one wait on the replica, cut short when the replica is lost.

        Raises:
            UpstreamBroken: the replica was lost, or the deadline has passed.
        """
        if self._lost:
            raise UpstreamBroken(self._lost, self.replica_id)
        try:
            async with asyncio.timeout(seconds) as self._waiting:
                yield
        except TimeoutError:
            if self._lost:
                raise UpstreamBroken(self._lost, self.replica_id) from None
            raise UpstreamBroken("stalled", f"nothing for {seconds:g} s") from None
        finally:
            self._waiting = None

    def when_lost(self, break_stream: Callable[[UpstreamBroken], None]) -> None:
        """Have an open stream broken when the replica is lost, at once if it already is."""
        self._break_stream = break_stream
        if self._lost:
            self.lose(self._lost)

    def lose(self, reason: str = "lease_lost") -> None:
        """The replica is gone for this request: break its wait and allow no other."""
        self._lost = reason
        if self._break_stream is not None:
            self._break_stream(UpstreamBroken(reason, self.replica_id))
        if self._waiting is not None and not self._waiting.expired():
            self._waiting.reschedule(asyncio.get_running_loop().time())
