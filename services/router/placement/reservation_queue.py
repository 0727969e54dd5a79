"""The requests that wait for a reservation, and how long they may wait."""

import asyncio
import heapq
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from services.observability.metrics import RouterMetrics
from services.router.config import RouterConfig
from services.router.errors import RequestFailed
from services.router.placement.reservation import Reservation, ReservationRequest

_LOOK_S = 0.1
_Kind = Literal["begun", "full", "unserved"]
"""Why a request waits: its answer was begun; replicas are full; or none may serve it, for want of a
lease or a version. Each kind has a bound of its own."""


@dataclass(eq=False, kw_only=True)
class Waiter:
    """A place in the queue.

    Attributes:
        priority: lower is served first.
        flow: whose request it is; flows of one priority take turns.
        urgent: it was served before and goes on, so it is ahead of every new one.
        content: what waits.
    """

    priority: int = 0
    flow: str = ""
    urgent: bool = False
    content: Any = field(default=None, repr=False)

    @property
    def rank(self) -> tuple[bool, int]:
        """The lowest is served first."""
        return not self.urgent, self.priority


class FairQueue:
    """Waiters, and which of them is next; nothing here waits itself.

    A queue is less than another if its first waiter is served before that of the other.

    Attributes:
        turn: number of its last turn, or of the last one before it began.
        servable_at: when some replica last could serve its requests, unless it was full.
    """

    def __init__(self, turn: int = 0) -> None:
        self.turn, self.servable_at = turn, 0.0
        self._ranks: dict[tuple[bool, int], OrderedDict[str, dict[Waiter, None]]] = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Waiter]:
        """All waiters, in no particular order."""
        for flows in self._ranks.values():
            for waiters in flows.values():
                yield from waiters

    def __lt__(self, other: "FairQueue") -> bool:
        return self._order < other._order

    @property
    def _order(self) -> tuple[tuple[bool, int], int]:
        assert self.first is not None
        return self.first.rank, self.turn

    def enter(self, waiter: Waiter) -> None:
        """Join the end of the waiter's flow."""
        flows = self._ranks.setdefault(waiter.rank, OrderedDict())
        flows.setdefault(waiter.flow, {})[waiter] = None
        self._length += 1

    def leave(self, waiter: Waiter) -> None:
        """Give the place up; a waiter that has left may leave again."""
        flows = self._ranks.get(waiter.rank, OrderedDict())
        waiters = flows.get(waiter.flow, {})
        if waiter not in waiters:
            return
        del waiters[waiter]
        self._length -= 1
        if not waiters:
            del flows[waiter.flow]
        if not flows:
            del self._ranks[waiter.rank]

    @property
    def first(self) -> Waiter | None:
        """The waiter whose turn it is."""
        if not self._ranks:
            return None
        flows = self._ranks[min(self._ranks)]
        return next(iter(next(iter(flows.values()))))

    def serve(self, waiter: Waiter) -> None:
        """The waiter has had its turn; the next is another flow's, if one waits."""
        self.leave(waiter)
        flows = self._ranks.get(waiter.rank, OrderedDict())
        if waiter.flow in flows:
            flows.move_to_end(waiter.flow)


class ReservationQueue:
    """Lets requests wait for reservations, in order, each with a deadline.

    Args:
        config: the router's settings.
        take: a reservation for a request if one is free now.
        refusal: why a request can never be met, None if it can; raised.
        servable: whether some replica may serve the request, unless it is full.
        unavailable: the error of a request that no replica could serve in time.
        next_chance: when an ejected replica may be tried again for a request.
    """

    def __init__(
        self,
        config: RouterConfig,
        *,
        take: Callable[[ReservationRequest], Reservation | None],
        refusal: Callable[[str | None], RequestFailed | None],
        servable: Callable[[ReservationRequest], bool],
        unavailable: Callable[[ReservationRequest], RequestFailed],
        next_chance: Callable[[ReservationRequest], float | None],
    ) -> None:
        self._config, self._take, self._refusal = config, take, refusal
        self._servable, self._unavailable, self._next_chance = servable, unavailable, next_chance
        self._queues: dict[tuple[str | None, int | None], FairQueue] = {}
        self._turns = 0
        self._waiting: Counter[_Kind] = Counter()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    @property
    def held_back(self) -> int:
        """Requests that wait only because replicas are full, or to go on with an answer."""
        return self._waiting["full"] + self._waiting["begun"]

    def stands(self, request: ReservationRequest) -> bool:
        """Whether a request waits for the same already."""
        return request.place in self._queues

    async def wait(self, request: ReservationRequest) -> Reservation:
        """Wait for a turn and a reservation.

        Raises:
            RequestFailed: 429 when too many wait or the wait was too long, 503 when no
                replica held a lease for too long, 404 when the model has gone.
        """
        began = time.monotonic()
        reservation: asyncio.Future[Reservation] = asyncio.get_running_loop().create_future()
        waiter = Waiter(
            priority=request.needs.priority,
            flow=request.needs.flow,
            urgent=request.urgent,
            content=(request, reservation),
        )
        queue, kind = self._enter(request, waiter)
        try:
            self.advance()
            while not reservation.done():
                timeout_s = self._timeout_s(queue, request, began)
                await asyncio.wait({reservation}, timeout=timeout_s)
            return reservation.result()
        except BaseException as error:
            if (
                reservation.done()
                and not reservation.cancelled()
                and reservation.exception() is None
            ):
                # The turn came as the client went: the reservation is for the next one.
                reservation.result().__exit__(type(error), error, None)
            raise
        finally:
            queue.leave(waiter)
            self._waiting[kind] -= 1
            if not queue and self._queues.get(request.place) is queue:
                del self._queues[request.place]
            RouterMetrics.queue_wait.observe(time.monotonic() - began)

    def _enter(self, request: ReservationRequest, waiter: Waiter) -> tuple[FairQueue, _Kind]:
        kind: _Kind = (
            "begun" if request.urgent else "full" if self._servable(request) else "unserved"
        )
        bound = self._config.max_queued_requests
        if kind != "begun" and self._waiting[kind] >= bound:
            RouterMetrics.queue_refusals.inc(tags={"reason": "queue_full"})
            why = "every replica is full" if kind == "full" else "no replica may serve it now"
            message = f"{why}, and {bound} requests wait already"
            raise RequestFailed(429, "queue_full", message, retry_after_s=1)
        self._waiting[kind] += 1
        queue = self._queues.setdefault(request.place, FairQueue(self._turns))
        queue.enter(waiter)
        return queue, kind

    def _timeout_s(self, queue: FairQueue, request: ReservationRequest, began: float) -> float:
        now, servable = time.monotonic(), self._servable(request)
        if servable:
            queue.servable_at = now
        unleased = max(began, queue.servable_at) + self._config.lease_wait_s - now
        if unleased <= 0 and not servable:
            RouterMetrics.unleased_refusals.inc()
            raise self._unavailable(request)
        full = began + self._config.queue_wait_s - now
        if full <= 0:
            RouterMetrics.queue_refusals.inc(tags={"reason": "queue_timeout"})
            message = f"every replica was full for {self._config.queue_wait_s:g} s"
            raise RequestFailed(429, "queue_timeout", message, retry_after_s=1)
        return min(max(unleased, _LOOK_S), full)

    def advance(self) -> None:
        """Serve the next requests; called when a replica may have free capacity.

        Of all queues, that whose first is ahead of the firsts of the others; queues take turns.
        """
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for (model, _), queue in self._queues.items():
            for waiter in list(queue):
                # Each has its own, to which its client's answer may be added.
                gone = self._refusal(model)
                if gone is None:
                    break
                queue.leave(waiter)
                waiter.content[1].set_exception(gone)
        queues = [queue for queue in self._queues.values() if queue]
        heapq.heapify(queues)
        while queues:
            queue = queues[0]
            if queue.first is not None and self._serve(queue, queue.first) and queue:
                heapq.heapreplace(queues, queue)
            else:
                heapq.heappop(queues)

    def _serve(self, queue: FairQueue, waiter: Waiter) -> bool:
        request, future = waiter.content
        reservation = self._take(request)
        if reservation is not None:
            queue.serve(waiter)
            self._turns += 1
            queue.turn = self._turns
            future.set_result(reservation)
            return True
        now = time.monotonic()
        if self._servable(request):
            queue.servable_at = now
        chance = self._next_chance(request)
        if chance is not None:
            self._call_in(max(chance - now, 0.001))
        return False

    def _call_in(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        if self._timer is None or self._timer.when() > loop.time() + seconds:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = loop.call_later(seconds, self.advance)

    def stop(self) -> None:
        """Serve no more requests."""
        if self._timer is not None:
            self._timer.cancel()
