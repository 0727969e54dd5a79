"""The rollout servers as the weight bus shows them, updated by one long poll."""

import asyncio

from services.changes import Changes
from services.observability.log import Log
from services.protocol.errors import NotReady
from services.protocol.weights.weight_bus import Member, MemberTable, ReplicaState, WeightBus
from services.retry import retrying

_WATCH_S = 10.0
_RETRY_S = 0.5
_IN_SERVICE = (ReplicaState.LIVE, ReplicaState.STAGING, ReplicaState.COMMITTING)
_log = Log("orchestrator")


class Fleet:
    """The newest member table, and questions about it."""

    def __init__(self, bus: WeightBus, changes: Changes) -> None:
        self._bus = bus
        self._changes = changes
        self._max_lag: int | None = None
        self._bound_due = False
        self._table: MemberTable | None = None
        self._slowest = -1
        self.leased: tuple[Member, ...] = ()
        """Replicas that may be given work."""
        self.live_version: int | None = None
        """The oldest version a leased replica serves; None while there is none."""
        self.pushes = 0
        self.in_service = 0
        """Replicas that have a lease, or lost it only until an update is through."""

    async def watch(self) -> None:
        """Follow the table until cancelled; a bus that does not answer is asked again.

        A bus that may have restarted knows no staleness bound: the bound is sent again
        until the bus has it, before any table of it is used.
        """
        revision = 0
        while True:
            try:
                await self._bound_if_due()
                table = await self._bus.watch(revision, _WATCH_S)
            except NotReady as error:
                _log.warning("bus_not_ready", error=str(error))
                self._bound_due = True
                revision = 0
                await asyncio.sleep(_RETRY_S)
                continue
            # Only a new bus counts from 0 again.
            self._bound_due = table.revision < revision
            if table.revision == revision and self._same_bus(table):
                continue  # the poll ended, nothing has changed
            revision = table.revision
            self._take(table)

    def _same_bus(self, table: MemberTable) -> bool:
        return self._table is not None and self._table.bus_id == table.bus_id

    def _take(self, table: MemberTable) -> None:
        if self._table is not None:
            # A restarted bus counts from 0 again.
            self.pushes += max(0, table.pushes - self._table.pushes)
        self._table = table
        # Asked for at every change of the run, while the table changes with the weights.
        self.leased = table.leased
        self.live_version = min((_version(member) for member in self.leased), default=None)
        in_service = [m for m in table.members if m.leased or m.state in _IN_SERVICE]
        self.in_service = len(in_service)
        self._slowest = min((_version(member) for member in in_service), default=-1)
        self._changes.notify()

    async def bound_lag(self, max_lag: int | None, timeout_s: float) -> None:
        """Ask the bus to lease only replicas this close to the newest version.

        Raises:
            NotReady: the bus is still away after `timeout_s`; says how.
        """
        self._max_lag = max_lag
        try:
            await retrying(
                lambda: self._bus.bound_lag(max_lag), pauses=[_RETRY_S], timeout_s=timeout_s
            )
        except NotReady as error:
            problem = f"the weight bus did not answer in {timeout_s:g} s: {error}"
            raise NotReady(problem) from error

    async def _bound_if_due(self) -> None:
        if self._bound_due:
            await self._bus.bound_lag(self._max_lag)
            self._bound_due = False

    def settled(self, version: int) -> bool:
        """Every replica in service has committed `version`, and one at least is leased."""
        return bool(self.leased) and self._slowest >= version

    async def wait_settled(self, version: int, timeout_s: float) -> None:
        """Wait until every replica in service has committed `version`.

        Raises:
            NotReady: they have not after `timeout_s`; says what they hold.
        """
        if not await self._changes.until(lambda: self.settled(version), timeout_s=timeout_s):
            raise NotReady(f"no full set of rollout servers holds version {version}: {self}")

    def __str__(self) -> str:
        """One line for people: each replica, its state and version."""
        members = self._table.members if self._table else ()
        parts = [f"{m.replica_id} {m.state} at {m.committed_version}" for m in members]
        return ", ".join(parts) or "no rollout server is registered"


def _version(member: Member) -> int:
    return -1 if member.committed_version is None else member.committed_version
