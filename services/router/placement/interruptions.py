"""Sessions whose answers stop where they are, and go on only under newer weights.

Sampled tokens stay in the token journal. The client waits and sees one answer, which goes on from
its tokens as after a replica's death.
"""

import asyncio

from cachetools import LRUCache

from services.router.errors import RequestFailed
from services.router.placement.membership import Membership
from services.router.placement.reservation import Reservation

INTERRUPTED = "interrupted"
"""Reason of `UpstreamBroken` for an answer that was stopped so; nothing has failed."""

_LOOK_S = 5.0


class Interruptions:
    """From which policy version on a session's calls may be answered.

    Args:
        membership: which versions the replicas serve.
        sessions: remembered at most; those interrupted longest ago are forgotten first.
        wait_s: how long an answer waits for its version.
    """

    def __init__(self, membership: Membership, *, sessions: int, wait_s: float) -> None:
        self._membership, self._wait_s = membership, wait_s
        self._floors: LRUCache[str, int] = LRUCache(sessions)
        self._changes: LRUCache[str, int] = LRUCache(sessions)
        self._reservations: dict[str, set[Reservation]] = {}

    def add(self, reservation: Reservation) -> None:
        """A request has begun to be answered."""
        if reservation.session is not None:
            self._reservations.setdefault(reservation.session, set()).add(reservation)

    def remove(self, reservation: Reservation) -> None:
        """It is not answered there any more."""
        reservations = self._reservations.get(reservation.session or "", set())
        reservations.discard(reservation)
        if not reservations:
            self._reservations.pop(reservation.session or "", None)

    def interrupt(self, session: str, min_version: int) -> int:
        """Stop what a session's calls are being answered with; it goes on from `min_version`.

        Other routers, which may have the calls, hear of it at their next exchange.

        Returns:
            How many reservations of this router it lost. It keeps those on replicas that serve the
            version already.
        """
        self._changes[session] = min_version
        return self.apply(session, min_version)

    def take_changes(self) -> dict[str, int]:
        """Sessions interrupted here since the last call, for the other routers."""
        changes = dict(self._changes)
        self._changes.clear()
        return changes

    def apply(self, session: str, min_version: int) -> int:
        """The same, for an interruption that another router has shared."""
        self._floors[session] = max(min_version, self._floors.get(session, min_version))
        stopped = [
            reservation
            for reservation in self._reservations.get(session, ())
            if self.bars(reservation)
        ]
        for reservation in stopped:
            reservation.lose(INTERRUPTED)
        return len(stopped)

    def bars(self, reservation: Reservation) -> bool:
        """Whether the reservation's replica serves an older version than its session may have."""
        floor = self._floors.get(reservation.session or "")
        member = self._membership.members.get(reservation.replica_id)
        return floor is not None and (member is None or (member.committed_version or 0) < floor)

    async def passed(self, session: str | None, model: str | None) -> int | None:
        """Wait until a replica may go on with the session.

        Returns:
            The version that the replica must serve; None: any.

        Raises:
            RequestFailed: 503, it was not there in time.
        """
        session = session or ""
        floor = self._floors.get(session)
        try:
            async with asyncio.timeout(self._wait_s):
                while floor is not None and not self._served(model, floor):
                    await self._membership.wait_for_change(_LOOK_S)
                    floor = self._floors.get(session)
        except TimeoutError:
            message = f"interrupted, and no replica reached version {floor} in {self._wait_s:g} s"
            raise RequestFailed(503, "version_not_served", message, retry_after_s=1) from None
        return floor

    def _served(self, model: str | None, version: int) -> bool:
        leased = self._membership.leased(model).values()
        return any((member.committed_version or 0) >= version for member in leased)
