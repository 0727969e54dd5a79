"""Makes reservations on leased replicas, and knows all open ones."""

import time
from dataclasses import replace
from statistics import fmean

from services.observability.log import Log
from services.observability.metrics import RouterMetrics
from services.protocol.router import MIN_VERSION_HEADER, RouterLoad
from services.protocol.weights.weight_bus import Member
from services.router.config import RouterConfig
from services.router.errors import ENGINE_ERROR, RequestFailed, UpstreamBroken
from services.router.placement.choice import Choice, ReplicaChooser
from services.router.placement.interruptions import INTERRUPTED, Interruptions
from services.router.placement.membership import Membership, TableSource
from services.router.placement.reservation import Reservation, ReservationRequest
from services.router.placement.reservation_queue import ReservationQueue

_LOG = Log("router")
_NO_FAULT = ("lease_lost", "abort", ENGINE_ERROR, INTERRUPTED)
"""Ends of a request that say nothing of the replica's health: a lease ends, and a weight update
aborts, for the weight bus's reasons; an engine's error is of the request, as of its grammar; others
are interrupted on purpose."""


class Reservations:
    """Makes reservations on leased replicas and knows all open ones.

    Args:
        config: the router's settings.
        bus: where the member table comes from.
        measured: whether the gauges show these replicas; of two tables only one may.
    """

    def __init__(self, config: RouterConfig, bus: TableSource, *, measured: bool = True) -> None:
        self._config = config
        self._measured = measured
        self._shown: set[str] = set()
        self._open: set[Reservation] = set()
        self.chooser = ReplicaChooser(config)
        self.membership = Membership(bus, config, on_gone=self._lose, on_news=self._news)
        self.interruptions = Interruptions(
            self.membership, sessions=config.max_sessions, wait_s=config.interrupted_wait_s
        )
        self.queue = ReservationQueue(
            config,
            take=self._try,
            refusal=self._unknown,
            servable=self._servable,
            unavailable=self._unleased,
            next_chance=lambda request: self.chooser.next_chance(list(self._leased(request))),
        )

    async def reserve(self, request: ReservationRequest) -> Reservation:
        """A reservation on a leased replica that serves the model, after a wait if there is none.

        Raises:
            RequestFailed: 404 when members are known and none serves the model; 503 when
                no lease came in time, or no version for an interrupted session; 429 when too
                many wait, or every replica was full for too long.
        """
        weight = request.weight
        if (unknown := self._unknown(request.model)) is not None:
            raise unknown
        while True:
            session, model = request.session, request.model
            floor = await self.interruptions.passed(session, model) if weight else None
            if floor is not None:
                request = replace(request, urgent=True, needs=request.needs.at_least(floor))
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
            # Rather there than nowhere: while it waited, so would all requests behind it.
            choice = self._choose(request, list(leased))
        if choice is None:
            return None
        if request.weight:
            RouterMetrics.choices.inc(tags={"kind": choice.kind})
        reservation = Reservation(self, leased[choice.replica_id], choice, request)
        self.interruptions.add(reservation)
        self._open.add(reservation)
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

    @property
    def load(self) -> RouterLoad:
        """How full the replicas with a lease are."""
        leased = list(self.membership.leased(None))
        busy = [name for name in leased if self.chooser.load(name)]
        seen = [pressure for name in busy if (pressure := self.chooser.health(name).cap.seen)]
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
        return self.chooser.load(replica_id) >= self.chooser.health(replica_id).cap.limit

    def _servable(self, request: ReservationRequest) -> bool:
        if self.membership.lent(request.model):
            return True  # after the trainer's turn, for which it waits as for a full replica
        now = time.monotonic()
        return any(self.chooser.health(name).admits(now) for name in self._leased(request))

    def _unknown(self, model: str | None) -> RequestFailed | None:
        served = {name for member in self.membership.members.values() for name in member.names}
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

    def shrunk(self, reservation: Reservation) -> None:
        """One of a reservation's sequences has ended before the others."""
        self.chooser.release(reservation.replica_id, 1)
        self.queue.advance()

    def answered(self, reservation: Reservation) -> None:
        """A reservation's first token has come; an ejected replica is back with it."""
        health = self.chooser.health(reservation.replica_id)
        if health.ejected:
            health.answered(time.monotonic())
            self.queue.advance()

    def give_back(self, reservation: Reservation, weight: int, error: BaseException | None) -> None:
        """Count a reservation as free and remember how its request ended."""
        self.chooser.release(reservation.replica_id, weight)
        self.interruptions.remove(reservation)
        self._open.discard(reservation)
        health = self.chooser.health(reservation.replica_id)
        health.over(reservation.trial)
        if error is None and weight:
            health.completed(time.monotonic())
        elif isinstance(error, UpstreamBroken) and _is_fault(error, weight):
            self.failed(reservation.replica_id, by="request")
        self.queue.advance()

    def failed(self, replica_id: str, *, by: str) -> None:
        """A request, or a probe of the router, has failed on a replica."""
        health = self.chooser.health(replica_id)
        if health.failed(time.monotonic(), unreachable=by == "probe"):
            RouterMetrics.ejections.inc(tags={"replica": replica_id, "by": by})
            _LOG.warning("replica_ejected", replica=replica_id, by=by)

    def _lose(self, gone: set[str]) -> None:
        for reservation in [one for one in self._open if one.replica_id in gone]:
            reservation.lose()

    def _news(self) -> None:
        busy = {reservation.replica_id for reservation in self._open}
        self.chooser.keep_only(set(self.membership.members) | busy)
        self.queue.advance()
        if self._measured:
            self._show()

    def _show(self) -> None:
        """Set the gauges, and let those of replicas that are gone disappear."""
        RouterMetrics.sessions.set(len(self.chooser.homes))
        RouterMetrics.queue.set(len(self.queue))
        known = set(self.membership.members)
        for replica in known:
            tags = {"replica": replica}
            RouterMetrics.in_flight.set(self.chooser.in_flight(replica), tags)
            RouterMetrics.cap.set(self.chooser.health(replica).cap.limit, tags)
        loads = [self.chooser.load(replica) for replica in self.membership.leased(None)]
        RouterMetrics.imbalance.set(max(loads, default=0) - min(loads, default=0))
        for replica in self._shown - known:
            RouterMetrics.in_flight.forget({"replica": replica})
            RouterMetrics.cap.forget({"replica": replica})
        self._shown = known


def _is_fault(error: UpstreamBroken, weight: int) -> bool:
    """Whether it says something of the engine's health.

    What ran no sequence says nothing of whether others would: a parser fails by itself.
    """
    return error.reason not in _NO_FAULT if weight else error.reason == "connection"
