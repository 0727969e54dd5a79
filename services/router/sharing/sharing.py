"""How several routers keep session homes, interruptions and counts of sequences in step.

Counts are sent whole and not as changes, so nothing that is lost on the way stays wrong, and the
counts of a router that falls silent expire. No request waits for an exchange: until the next one a
router knows its own part, and for the rest guesses as every other router would.
"""

import asyncio
import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import ray
from ray.exceptions import RayActorError

from services.observability.log import Log
from services.observability.metrics import RouterMetrics
from services.protocol.errors import NotReady
from services.protocol.weights.weight_bus import NAMESPACE
from services.router.config import RouterConfig
from services.router.placement.reservations import Reservations

TABLE_ACTOR = "router_table"
_LOG = Log("router")
_TIMEOUT_S = 2.0
_MOST_HOMES = 10_000
"""Homes sent at a time, so that one exchange stays short."""
_T = TypeVar("_T")
_News = OrderedDict[str, tuple[_T, int, str]]
"""Of each session: what it is now, the revision that made it so, and the router that sent it."""


@dataclass(frozen=True, kw_only=True)
class SyncResponse:
    """What a router learns of all others.

    Attributes:
        counts: their sequences in flight, by replica.
        homes: homes of sessions that they have changed; None: the session is over.
        floors: sessions that clients interrupted at them, and the version each goes on from.
        table_id: incarnation of the table; another one knows nothing of before.
        revision: how far the table was read.
    """

    counts: dict[str, int]
    homes: dict[str, str | None]
    floors: dict[str, int]
    table_id: str
    revision: int


@dataclass(frozen=True, kw_only=True)
class SyncRequest(SyncResponse):
    """What one router says of itself, with the table and revision that it has read last.

    Attributes:
        router_id: unique among all routers that ever were.
    """

    router_id: str


class SharedTable:
    """Merges what routers say; no tasks, no input or output.

    Args:
        bound: homes remembered, and interruptions; those not changed for longest go first.
        expire_s: silence after which a router's counts are forgotten, seconds.
        clock: seconds, monotonic.
    """

    def __init__(
        self, *, bound: int, expire_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._bound, self._expire_s, self._clock = bound, expire_s, clock
        self._table_id, self._revision = secrets.token_hex(4), 0
        self._routers: dict[str, tuple[dict[str, int], float]] = {}
        self._homes: _News[str | None] = OrderedDict()
        self._floors: _News[int] = OrderedDict()

    def exchange(self, request: SyncRequest) -> SyncResponse:
        """Merge the news of one router and answer with those of the others."""
        self._routers[request.router_id] = (request.counts, self._clock())
        self._take(self._homes, request.homes, request.router_id)
        self._take(self._floors, request.floors, request.router_id)
        heard = request.revision if request.table_id == self._table_id else 0
        return SyncResponse(
            counts=self._others(request.router_id),
            homes=_since(self._homes, heard, request.router_id),
            floors=_since(self._floors, heard, request.router_id),
            table_id=self._table_id,
            revision=self._revision,
        )

    def _take(self, known: _News[_T], news: dict[str, _T], router_id: str) -> None:
        for session, value in news.items():
            self._revision += 1
            known[session] = (value, self._revision, router_id)
            known.move_to_end(session)
            if len(known) > self._bound:
                known.popitem(last=False)

    def _others(self, router_id: str) -> dict[str, int]:
        oldest = self._clock() - self._expire_s
        for name in [name for name, (_, at) in self._routers.items() if at < oldest]:
            del self._routers[name]
        total: Counter[str] = Counter()
        for name, (counts, _) in self._routers.items():
            if name != router_id:
                total.update(counts)
        return total


def _since(known: _News[_T], revision: int, router_id: str) -> dict[str, _T]:
    new: dict[str, _T] = {}
    for session, (value, changed, by) in reversed(known.items()):
        if changed <= revision:
            break
        if by != router_id:
            new[session] = value
    return new


class ExchangePoint(Protocol):
    """Where the shared table is."""

    async def exchange(self, request: SyncRequest) -> SyncResponse:
        """See `SharedTable`.

        Raises:
            NotReady: the table cannot be reached now.
        """


class TableActorPoint:
    """The shared table in an actor of its own, which the first router that needs it starts.

    An actor that has died, with the router that started it, is started again.

    It holds nothing that routers could not send again, so it need not outlive them.
    """

    def __init__(self, config: RouterConfig) -> None:
        self._config = config
        self._actor: Any = None

    async def exchange(self, request: SyncRequest) -> SyncResponse:
        """See `ExchangePoint`."""
        try:
            if self._actor is None:
                self._actor = await asyncio.to_thread(self._find)
            reference = self._actor.exchange.remote(request)
            async with asyncio.timeout(_TIMEOUT_S):
                return await reference
        except TimeoutError:
            raise NotReady("the routers' table does not answer") from None
        except (RayActorError, ConnectionError, ValueError) as error:
            self._actor = None
            raise NotReady(f"the routers' table is not up: {error}") from error

    def _find(self) -> Any:
        options = {"name": TABLE_ACTOR, "namespace": NAMESPACE, "get_if_exists": True}
        actor = ray.remote(num_cpus=0)(SharedTable).options(**options)
        return actor.remote(bound=self._config.max_sessions, expire_s=self._config.share_expire_s)


class Sharing:
    """Keeps one router's chooser in step with those of the others."""

    def __init__(
        self, config: RouterConfig, reservations: Reservations, point: ExchangePoint
    ) -> None:
        self._config, self._reservations, self._point = config, reservations, point
        reservations.chooser.homes.shared = True
        self._router_id = secrets.token_hex(8)
        self._unsent_homes: dict[str, str | None] = {}
        self._unsent_floors: dict[str, int] = {}
        self._table_id, self._revision = "", 0
        self._heard_at = time.monotonic()

    async def run(self) -> None:
        """Exchange until cancelled; the counts of this router expire after that."""
        while True:
            try:
                await self.exchange()
            except NotReady as absence:
                self._alone("unreachable", str(absence))
            except Exception:  # noqa: BLE001  the loop's outer edge; without it none is heard again
                _LOG.exception("sharing_failed")
                self._alone("failed", "see the log")
            await asyncio.sleep(self._config.share_s)

    async def exchange(self) -> None:
        """Send and receive once.

        Raises:
            NotReady: the table cannot be reached now; nothing is lost by it.
        """
        chooser = self._reservations.chooser
        self._unsent_homes |= chooser.homes.take_changes(_MOST_HOMES - len(self._unsent_homes))
        self._unsent_floors = self._unsent_floors or self._reservations.interruptions.take_changes()
        response = await self._point.exchange(
            SyncRequest(
                router_id=self._router_id,
                counts=chooser.counts,
                homes=self._unsent_homes,
                floors=self._unsent_floors,
                table_id=self._table_id,
                revision=self._revision,
            )
        )
        self._unsent_homes, self._unsent_floors = {}, {}
        if self._table_id not in ("", response.table_id):
            # A new table: only this router can send again what the old one knew.
            chooser.homes.all_changed()
        self._table_id, self._revision = response.table_id, response.revision
        self._heard_at = time.monotonic()
        for session, home in response.homes.items():
            chooser.homes.apply(session, home, self._heard_at)
        for session, floor in response.floors.items():
            self._reservations.interruptions.apply(session, floor)
        chooser.elsewhere = response.counts
        self._reservations.queue.advance()

    def _alone(self, kind: str, reason: str) -> None:
        RouterMetrics.share_failures.inc()
        silence = time.monotonic() - self._heard_at
        if silence > self._config.share_expire_s and self._reservations.chooser.elsewhere:
            _LOG.warning("router_decides_alone", kind=kind, reason=reason, silence_s=silence)
            self._reservations.chooser.elsewhere = {}
            self._reservations.queue.advance()
