"""A barrier, so that all replicas commit a version together."""

from services.changes import Changes
from services.weight_bus.members.replicas import Replicas


class Barrier:
    """Holds replicas that have staged a version back until every one in service has.

    Replicas that are silent, or have failed too often to be in service, are not waited for.
    """

    def __init__(self, replicas: Replicas, changes: Changes) -> None:
        self._replicas, self._changes = replicas, changes
        self._staged: dict[str, int] = {}

    async def passed(self, replica_id: str, version: int, *, timeout_s: float) -> bool:
        """Wait for the others; whether all were there when the wait was over."""
        known = self._replicas.replica_ids
        self._staged = {name: held for name, held in self._staged.items() if name in known}
        # It stays after the wait: replicas that look later must see that this one had staged.
        self._staged[replica_id] = version
        self._changes.notify()
        return await self._changes.until(lambda: self._open(version), timeout_s=timeout_s)

    def _open(self, version: int) -> bool:
        for replica_id in self._replicas.replica_ids:
            replica = self._replicas.get(replica_id)
            if replica is None or not self._replicas.in_service(replica):
                continue
            # One that has staged a newer version will never commit this one.
            reached = (replica.committed_version, self._staged.get(replica_id))
            if all(one is None or one < version for one in reached):
                return False
        return True
