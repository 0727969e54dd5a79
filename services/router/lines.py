"""Everybody who waits for a seat, and how long they do."""

import asyncio
import heapq
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from services.observability.metrics import RouterMetrics
from services.router.config import RouterConfig
from services.router.errors import RequestFailed
from services.router.needs import Needs
from services.router.waiting_line import Ticket, WaitingLine

if TYPE_CHECKING:
    from services.router.seats import Seat


_LOOK_S = 0.1
_Kind = Literal["begun", "full", "unserved"]
"""Why somebody waits: with an answer that was begun; because replicas are full; or because none
may serve it at all, for want of a lease or a version. Each kind leaves the others their room."""


@dataclass(frozen=True, kw_only=True)
class Wish:
    """A seat that somebody wants.

    Attributes:
        model: served model name, None for any.
        session: value of the session header.
        weight: sequences the request will run at once.
        avoid: a replica to leave out while another one can be had.
        urgent: it goes on with an answer that was begun.
        needs: what else the request needs.
    """

    model: str | None
    session: str | None
    weight: int
    avoid: str | None
    urgent: bool
    needs: Needs

    @property
    def place(self) -> tuple[str | None, int | None]:
        """Those with one place could all be given the same replicas, so they share a line."""
        return self.model, self.needs.min_version


class _Line(WaitingLine):
    """One line.

    Attributes:
        turn: number of its last turn, or of the last one before it began.
        hope_at: when there was last a replica that only was too full.
    """

    def __init__(self, turn: int) -> None:
        super().__init__()
        self.turn, self.hope_at = turn, 0.0

    def __lt__(self, other: "_Line") -> bool:
        return self._order < other._order

    @property
    def _order(self) -> tuple[tuple[bool, int], int]:
        assert self.first is not None
        return self.first.rank, self.turn


class Lines:
    """Lets requests wait for seats, in order, each with a deadline.

    Args:
        config: the router's settings.
        take: a seat for a wish if one is free now.
        refusal: why a wish can never be met, None if it can; raised.
        hopeful: whether some replica may meet the wish, if only it were less full.
        hindrance: what to tell a wish that was never hopeful.
        next_chance: when an ejected replica may be tried again for a wish.
    """

    def __init__(
        self,
        config: RouterConfig,
        *,
        take: Callable[[Wish], "Seat | None"],
        refusal: Callable[[str | None], RequestFailed | None],
        hopeful: Callable[[Wish], bool],
        hindrance: Callable[[Wish], RequestFailed],
        next_chance: Callable[[Wish], float | None],
    ) -> None:
        self._config, self._take, self._refusal = config, take, refusal
        self._hopeful, self._hindrance, self._next_chance = hopeful, hindrance, next_chance
        self._lines: dict[tuple[str | None, int | None], _Line] = {}
        self._turns = 0
        self._waiting: Counter[_Kind] = Counter()
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def stands(self, wish: Wish) -> bool:
        """Whether somebody waits for the same already."""
        return wish.place in self._lines

    async def wait(self, wish: Wish) -> "Seat":
        """Wait for a turn and a seat.

        Raises:
            RequestFailed: 429 when too many wait or the wait was too long, 503 when no
                replica held a lease for too long, 404 when the model has gone.
        """
        began = time.monotonic()
        seat: asyncio.Future[Seat] = asyncio.get_running_loop().create_future()
        ticket = Ticket(
            priority=wish.needs.priority,
            flow=wish.needs.flow,
            urgent=wish.urgent,
            content=(wish, seat),
        )
        line, kind = self._enter(wish, ticket)
        try:
            self.advance()
            while not seat.done():
                patience = self._patience(line, wish, began)
                await asyncio.wait({seat}, timeout=patience)
            return seat.result()
        except BaseException as error:
            if seat.done() and not seat.cancelled() and seat.exception() is None:
                # The turn came as the client went: the seat is for the next one.
                seat.result().__exit__(type(error), error, None)
            raise
        finally:
            line.leave(ticket)
            self._waiting[kind] -= 1
            if not line and self._lines.get(wish.place) is line:
                del self._lines[wish.place]
            RouterMetrics.queue_wait.observe(time.monotonic() - began)

    def _enter(self, wish: Wish, ticket: Ticket) -> tuple[_Line, _Kind]:
        kind: _Kind = "begun" if wish.urgent else "full" if self._hopeful(wish) else "unserved"
        bound = self._config.max_queued_requests
        if kind != "begun" and self._waiting[kind] >= bound:
            RouterMetrics.queue_refusals.inc(tags={"reason": "queue_full"})
            why = "every replica is full" if kind == "full" else "no replica may serve it now"
            message = f"{why}, and {bound} requests wait already"
            raise RequestFailed(429, "queue_full", message, retry_after_s=1)
        self._waiting[kind] += 1
        line = self._lines.setdefault(wish.place, _Line(self._turns))
        line.enter(ticket)
        return line, kind

    def _patience(self, line: _Line, wish: Wish, began: float) -> float:
        now, hopeful = time.monotonic(), self._hopeful(wish)
        if hopeful:
            line.hope_at = now
        unleased = max(began, line.hope_at) + self._config.lease_wait_s - now
        if unleased <= 0 and not hopeful:
            RouterMetrics.unleased_refusals.inc()
            raise self._hindrance(wish)
        full = began + self._config.queue_wait_s - now
        if full <= 0:
            RouterMetrics.queue_refusals.inc(tags={"reason": "queue_timeout"})
            message = f"every replica was full for {self._config.queue_wait_s:g} s"
            raise RequestFailed(429, "queue_timeout", message, retry_after_s=1)
        return min(max(unleased, _LOOK_S), full)

    def advance(self) -> None:
        """To be called when a seat may have become free: give seats to whoever is next.

        Of all lines, that whose first is ahead of the firsts of the others; lines take turns.
        """
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for (model, _), line in self._lines.items():
            gone = self._refusal(model)
            for hopeless in list(line) if gone is not None else ():
                line.leave(hopeless)
                hopeless.content[1].set_exception(gone)
        lines = [line for line in self._lines.values() if line]
        heapq.heapify(lines)
        while lines:
            line = lines[0]
            if line.first is not None and self._serve(line, line.first) and line:
                heapq.heapreplace(lines, line)
            else:
                heapq.heappop(lines)

    def _serve(self, line: _Line, ticket: Ticket) -> bool:
        wish, future = ticket.content
        seat = self._take(wish)
        if seat is not None:
            line.serve(ticket)
            self._turns += 1
            line.turn = self._turns
            future.set_result(seat)
            return True
        now = time.monotonic()
        if self._hopeful(wish):
            line.hope_at = now
        chance = self._next_chance(wish)
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
        """Nobody is served any more."""
        if self._timer is not None:
            self._timer.cancel()
