"""The member table with all leases, long-polled from the weight bus.

Leases end `lease_s` after the last news from the bus. News counts from when it was asked
for, not from when it came, so a slow answer can only shorten a lease.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Protocol

from services.observability.log import Log
from services.observability.metrics import RouterMetrics
from services.protocol.errors import NotReady
from services.protocol.weights.weight_bus import Member, MemberTable, ReplicaState
from services.router.config import RouterConfig

_LOG = Log("router")
_RETRY_S = 0.2
_GONE = (ReplicaState.DEAD, ReplicaState.PAUSED, ReplicaState.ASLEEP, ReplicaState.LENT)


class TableSource(Protocol):
    """The one call of the weight bus that the router makes."""

    async def watch(self, revision: int, wait_s: float) -> MemberTable:
        """See `services.protocol.weights.weight_bus.WeightBus`."""


class Membership:
    """The router's view of the member table, refreshed while `watch` runs.

    Args:
        bus: where the table comes from.
        config: the router's settings.
        on_gone: called with the ids of replicas that died or drain, whose open requests
            must go on elsewhere: those that left, as one does that is scaled down; those
            that an operator pauses or whose device the trainer has; and those that are
            suspected while another one of their model holds a lease.
        on_news: called after every poll, whether it succeeded or not.

    Attributes:
        members: all members of the last table, leased or not.
    """

    def __init__(
        self,
        bus: TableSource,
        config: RouterConfig,
        *,
        on_gone: Callable[[set[str]], None],
        on_news: Callable[[], None],
    ) -> None:
        self._bus, self._config = bus, config
        self._on_gone, self._on_news = on_gone, on_news
        self.members: Mapping[str, Member] = {}
        self._bus_id, self._revision = "", -1
        self._missed = False
        self._started_at = time.monotonic()
        self._lease_s = 0.0
        self._news_at = 0.0
        self._changed = asyncio.Event()

    def leased(self, model: str | None) -> Mapping[str, Member]:
        """Replicas that may be given work now and serve `model` (None: any), by id."""
        if time.monotonic() >= self._news_at + self._lease_s:
            return {}
        return {
            replica: member
            for replica, member in self.members.items()
            if member.leased and member.serves(model)
        }

    def holds_lease(self, replica_id: str) -> bool:
        """Whether one replica may be given work now."""
        member = self.members.get(replica_id)
        return (
            member is not None
            and member.leased
            and time.monotonic() < self._news_at + self._lease_s
        )

    @property
    def busless(self) -> bool:
        """Whether no bus has ever answered, though it was asked for long: there seems to be none.

        One that is only slower to start than the router is waited for like a lease.
        """
        waited_s = time.monotonic() - self._started_at
        return self._missed and not self._bus_id and waited_s >= self._config.lease_wait_s

    def lent(self, model: str | None) -> bool:
        """Whether a replica of the model, None for any, comes back after the trainer's turn."""
        return any(
            member.state is ReplicaState.LENT and member.serves(model)
            for member in self.members.values()
        )

    async def wait_for_change(self, timeout_s: float) -> None:
        """Return when the table changes, or after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
        except TimeoutError:
            return

    async def watch(self) -> None:
        """Watch the bus until cancelled."""
        self._started_at = time.monotonic()
        while True:
            asked_at = time.monotonic()
            wait_s = self._config.watch_wait_s
            if self._lease_s:
                wait_s = min(wait_s, self._lease_s / 4)
            try:
                table = await self._bus.watch(self._revision, wait_s)
            except NotReady as absence:
                _LOG.warning("weight_bus_unreachable", reason=str(absence))
                self._missed = True
            except Exception:  # noqa: BLE001  the loop's outer edge; without it leases end for good
                _LOG.exception("weight_bus_failed")
            else:
                self._take(table, asked_at)
                self._on_news()
                continue
            await self._pause()

    async def _pause(self) -> None:
        RouterMetrics.watch_failures.inc()
        # If it comes back as another one, its revisions say nothing beside those of before.
        self._revision = -1
        self._on_news()
        await asyncio.sleep(_RETRY_S)

    def _take(self, table: MemberTable, asked_at: float) -> None:
        self._news_at, self._lease_s = asked_at, table.lease_s
        restarted = table.bus_id != self._bus_id
        if not restarted and table.revision == self._revision:
            # A renewal of leases that had run out is a change, too.
            self._announce()
            return
        before = self.members
        self._bus_id, self._revision = table.bus_id, table.revision
        self.members = {member.replica_id: member for member in table.members}
        gone = {name for name, member in self.members.items() if self._drains(member)}
        if not restarted:
            # A restarted bus knows no member for a moment; that says nothing about replicas.
            gone |= before.keys() - self.members.keys()
        if gone:
            self._on_gone(gone)
        self._announce()

    def _drains(self, member: Member) -> bool:
        if member.state is ReplicaState.SUSPECT:
            # It may come back; but where others serve the model, no request needs to wait for it.
            return any(
                other.leased for other in self.members.values() if other.model == member.model
            )
        return member.state in _GONE

    def _announce(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
