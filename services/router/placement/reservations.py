"""Reservations: capacity of one leased replica for one request, counted from choice to end."""

import asyncio
import time
from collections.abc import Callable
from statistics import fmean
from types import TracebackType
from typing import Self

from services.observability.log import Log
from services.observability.metrics import RouterMetrics
from services.protocol.router import MIN_VERSION_HEADER, RouterLoad
from services.protocol.weights.weight_bus import Member
from services.router.config import RouterConfig
from services.router.errors import RequestFailed, UpstreamBroken
from services.router.placement.choice import Choice, ReplicaChooser
from services.router.placement.interruptions import INTERRUPTED, Interruptions
from services.router.placement.membership import Membership, TableSource
from services.router.placement.replica_gauges import ReplicaGauges
from services.router.placement.reservation_queue import ReservationQueue, ReservationRequest
from services.router.placement.sequence_cap import SequenceCap
from services.router.request.needs import NO_NEEDS, Needs

_LOG = Log("router")
_NO_FAULT = ("lease_lost", "abort", INTERRUPTED)
"""Ends of a request that say nothing of the replica's health: a lease ends, and a weight update
aborts, for the weight bus's reasons; others are interrupted on purpose."""


class Reservation:
    """A place on a replica; used as a context manager that gives it back.

    Attributes:
        replica_id: the replica.
        address: its `http://host:port`.
        model: the model it serves.
        kind: why this replica was chosen.
        trial: see `Choice`.
        session: value of the request's session header.
    """

    def __init__(
        self,
        reservations: "Reservations",
        member: Member,
        choice: Choice,
        request: ReservationRequest,
    ) -> None:
        self.replica_id, self.address, self.model = member.replica_id, member.address, member.model
        self.kind, self.trial = choice.kind, choice.trial
        self._reservations, self._weight, self.session = (
            reservations,
            request.weight,
            request.session,
        )
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
            self._reservations.chooser.release(self.replica_id, 1)
            self._reservations.queue.advance()

    def limit(self, seconds: float) -> "_Limit":
        """A deadline for one wait on the replica, cut short when the replica is lost."""
        return _Limit(self, seconds)

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


class _Limit:
    """`asyncio.timeout` that says which of the two happened."""

    def __init__(self, reservation: Reservation, seconds: float) -> None:
        self._reservation, self._seconds = reservation, seconds

    async def __aenter__(self) -> None:
        if self._reservation._lost:
            raise UpstreamBroken(self._reservation._lost, self._reservation.replica_id)
        self._timeout = asyncio.timeout(self._seconds)
        await self._timeout.__aenter__()
        self._reservation._waiting = self._timeout

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._reservation._waiting = None
        try:
            await self._timeout.__aexit__(kind, error, trace)
        except TimeoutError:
            if self._reservation._lost:
                raise UpstreamBroken(
                    self._reservation._lost, self._reservation.replica_id
                ) from None
            raise UpstreamBroken("stalled", f"nothing for {self._seconds:g} s") from None


class Reservations:
    """Makes reservations on leased replicas and knows all open ones.

    Args:
        config: the router's settings.
        bus: where the member table comes from.
        measured: whether the gauges show these replicas; of two tables only one may.
    """

    def __init__(self, config: RouterConfig, bus: TableSource, *, measured: bool = True) -> None:
        self._config = config
        self._gauges = ReplicaGauges() if measured else None
        self._taken: dict[str, set[Reservation]] = {}
        self._caps: dict[str, SequenceCap] = {}
        self.chooser = ReplicaChooser(config)
        self.membership = Membership(bus, config, on_gone=self._lose, on_news=self._news)
        self.interruptions = Interruptions(
            self.membership, sessions=config.max_sessions, wait_s=config.interrupted_wait_s
        )
        self.queue = ReservationQueue(
            config,
            take=self._try,
            refusal=self._unknown,
            hopeful=self._hopeful,
            hindrance=self._unleased,
            next_chance=lambda request: self.chooser.next_chance(list(self._leased(request))),
        )

    async def reserve(
        self,
        model: str | None,
        *,
        session: str | None,
        weight: int,
        avoid: str | None = None,
        urgent: bool = False,
        needs: Needs = NO_NEEDS,
    ) -> Reservation:
        """A reservation on a leased replica that serves `model`, after a wait if there is none.

        Args:
            model: served model name, None for any.
            session: value of the session header.
            weight: sequences the request will run at once.
            avoid: a replica to leave out while another one can be had.
            urgent: it goes on with an answer that was begun, ahead of all new ones.
            needs: what else the request needs.

        Raises:
            RequestFailed: 404 when members are known and none serves the model; 503 when
                no lease came in time, or no version for an interrupted session; 429 when too
                many wait, or every replica was full for too long.
        """
        unknown = self._unknown(model)
        if unknown is not None:
            raise unknown
        while True:
            floor = await self.interruptions.passed(session, model) if weight else None
            request = ReservationRequest(
                model=model,
                session=session,
                weight=weight,
                avoid=avoid,
                urgent=urgent or floor is not None,
                needs=needs.at_least(floor),
            )
            reservation = None
            if request.urgent or not weight or not self.queue.stands(request):
                reservation = self._try(request)
            reservation = reservation or await self.queue.wait(request)
            if not weight or not self.interruptions.bars(reservation):
                return reservation
            self.give_back(reservation, weight, UpstreamBroken(INTERRUPTED))  # while it waited

    def _leased(self, request: ReservationRequest) -> dict[str, Member]:
        least = request.needs.min_version
        leased = self.membership.leased(request.model).items()
        return {
            name: member
            for name, member in leased
            if least is None or (member.committed_version or 0) >= least
        }

    def _try(self, request: ReservationRequest) -> Reservation | None:
        leased = self._leased(request)
        others = [name for name in leased if name != request.avoid]
        choice = self._choose(request, others)
        if choice is None and len(others) < len(leased):
            # Rather there than nowhere: while it waited, so would everybody behind it.
            choice = self._choose(request, list(leased))
        if choice is None:
            return None
        if request.weight:
            RouterMetrics.choices.inc(tags={"kind": choice.kind})
        reservation = Reservation(self, leased[choice.replica_id], choice, request)
        self.interruptions.took(reservation)
        self._taken.setdefault(choice.replica_id, set()).add(reservation)
        return reservation

    def _choose(self, request: ReservationRequest, candidates: list[str]) -> Choice | None:
        return self.chooser.choose(
            candidates,
            session=request.session,
            weight=request.weight,
            now=time.monotonic(),
            prefix=request.needs.prefix,
            # What runs no sequence, such as parsing, fits anywhere.
            full=[name for name in candidates if request.weight and self.full(name)],
        )

    def cap(self, replica_id: str) -> SequenceCap:
        """What the replica may have in flight."""
        return self._caps.setdefault(replica_id, SequenceCap(self._config))

    @property
    def load(self) -> RouterLoad:
        """How full the replicas with a lease are."""
        leased = list(self.membership.leased(None))
        busy = [name for name in leased if self.chooser.load(name)]
        seen = [pressure for name in busy if (pressure := self.cap(name).seen)]
        return RouterLoad(
            replicas=len(leased),
            full=sum(map(self.full, leased)),
            in_flight=sum(map(self.chooser.load, leased)),
            waiting=self.queue.held_back,
            queued=sum(pressure.waiting for pressure in seen),
            kv_usage=fmean(pressure.kv_usage for pressure in seen) if seen else None,
            max_choices=self._config.max_choices,
            by_replica={name: self.chooser.load(name) for name in leased},
        )

    def full(self, replica_id: str) -> bool:
        """Whether the replica has in flight what it may have."""
        return self.chooser.load(replica_id) >= self.cap(replica_id).limit

    def _hopeful(self, request: ReservationRequest) -> bool:
        now = time.monotonic()
        return any(self.chooser.health(name).admits(now) for name in self._leased(request))

    def _unknown(self, model: str | None) -> RequestFailed | None:
        served = {member.model for member in self.membership.members.values()}
        outside = {backend.model for backend in self._config.backends}
        # Where there are only backends, no replica will ever come that one could wait for.
        if not served and not (outside and self.membership.busless):
            return None
        if model in served or (model is None and served):
            return None
        listed = ", ".join(sorted(served | outside))
        what = "name a model" if model is None else f"the model {model!r} does not exist"
        message = f"{what}; served: {listed}"
        return RequestFailed(404, "model_not_found", message, param="model")

    def _unleased(self, request: ReservationRequest) -> RequestFailed:
        least, waited = request.needs.min_version, f"within {self._config.lease_wait_s:g} s"
        leased = self.membership.leased(request.model)
        if self._leased(request):
            message = f"every replica with a lease is failing, and none came back {waited}"
        elif least is not None and leased:
            seen = sorted({member.committed_version or 0 for member in leased.values()})
            message = f"no replica reached version {least} {waited}; versions seen: {seen}"
            return RequestFailed(
                503, "version_not_served", message, param=MIN_VERSION_HEADER, retry_after_s=1
            )
        else:
            message = f"no replica held a lease {waited}"
        return RequestFailed(503, "no_lease", message, retry_after_s=1)

    def answered(self, reservation: Reservation) -> None:
        """A reservation's first token has come; an ejected replica is back with it."""
        health = self.chooser.health(reservation.replica_id)
        if health.ejected:
            health.answered(time.monotonic())
            self.queue.advance()

    def give_back(self, reservation: Reservation, weight: int, error: BaseException | None) -> None:
        """Count a reservation as free and remember how its request ended."""
        self.chooser.release(reservation.replica_id, weight)
        self.interruptions.gave_back(reservation)
        reservations = self._taken.get(reservation.replica_id, set())
        reservations.discard(reservation)
        if not reservations:
            self._taken.pop(reservation.replica_id, None)
        health = self.chooser.health(reservation.replica_id)
        health.over(reservation.trial)
        if error is None and weight:
            health.completed(time.monotonic())
        elif isinstance(error, UpstreamBroken) and _is_fault(error, weight):
            self.failed(reservation.replica_id, by="request")
        self.queue.advance()

    def failed(self, replica_id: str, *, by: str) -> None:
        """A request, or a look by the router itself, has failed on a replica."""
        health = self.chooser.health(replica_id)
        if health.failed(time.monotonic(), unreachable=by == "probe"):
            RouterMetrics.ejections.inc(tags={"replica": replica_id, "by": by})
            _LOG.warning("replica_ejected", replica=replica_id, by=by)

    def _lose(self, gone: set[str]) -> None:
        for replica in gone:
            for reservation in list(self._taken.get(replica, ())):
                reservation.lose()

    def _news(self) -> None:
        known = set(self.membership.members) | set(self._taken)
        self.chooser.keep_only(known)
        for replica in self._caps.keys() - known:
            del self._caps[replica]
        self.queue.advance()
        if self._gauges is not None:
            self._gauges.show(
                self.chooser,
                known=self.membership.members,
                leased=self.membership.leased(None),
                cap=lambda replica: self.cap(replica).limit,
                waiting=len(self.queue),
            )


def _is_fault(error: UpstreamBroken, weight: int) -> bool:
    """Whether it says something of the engine's health.

    What ran no sequence says nothing of whether others would: a parser fails by itself.
    """
    return error.reason not in _NO_FAULT if weight else error.reason == "connection"
