"""What several routers tell each other: session homes, interruptions, and what is in flight.

Counts are sent whole and not as changes, so nothing that is lost on the way stays wrong, and
those of a router that falls silent expire. No request waits for any of it: until the next
exchange a router knows its own, and for the rest guesses as every other would.
"""

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

_T = TypeVar("_T")
_News = OrderedDict[str, tuple[_T, int, str]]
"""Of each session: what it is now, the revision that made it so, and the router that sent it."""


@dataclass(frozen=True, kw_only=True)
class SyncRequest:
    """What one router tells.

    Attributes:
        router_id: unique among all routers that ever were.
        counts: its sequences in flight, by replica.
        homes: homes of sessions that it has changed; None: the session is over.
        floors: sessions that clients interrupted at it, and the version each goes on from.
        table_id: the table that it heard of last.
        revision: how far it has heard it.
    """

    router_id: str
    counts: dict[str, int]
    homes: dict[str, str | None]
    floors: dict[str, int]
    table_id: str
    revision: int


@dataclass(frozen=True, kw_only=True)
class SyncResponse:
    """What it hears.

    Attributes:
        counts: sequences that all others have in flight, by replica.
        homes: homes that others have changed since; None: the session is over.
        floors: sessions interrupted at others since.
        table_id: incarnation of the table; another one knows nothing of before.
        revision: for the next request.
    """

    counts: dict[str, int]
    homes: dict[str, str | None]
    floors: dict[str, int]
    table_id: str
    revision: int


class SharedTable:
    """Merges what routers tell; no tasks, no input or output.

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
        total: dict[str, int] = {}
        for name, (counts, _) in self._routers.items():
            if name != router_id:
                for replica, count in counts.items():
                    total[replica] = total.get(replica, 0) + count
        return total


def _since(known: _News[_T], revision: int, router_id: str) -> dict[str, _T]:
    new: dict[str, _T] = {}
    for session, (value, changed, by) in reversed(known.items()):
        if changed <= revision:
            break
        if by != router_id:
            new[session] = value
    return new
