"""Snapshots: the files of a workspace, and the cells that made its variables."""

import asyncio
import secrets
from dataclasses import dataclass

from services.observability.metrics import WorkspaceMetrics
from services.protocol.reward.workspaces import PythonCall
from services.reward_service.workspaces.errors import QuotaFull, UnknownSnapshot

_RETRY_S = 30.0


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """What a workspace can begin as.

    Attributes:
        id: names it; nobody can guess it.
        owner: who may use it.
        archive: a tar of the files.
        cells: what its interpreter runs again.
    """

    id: str
    owner: str
    archive: bytes
    cells: tuple[PythonCall, ...]

    @property
    def bytes(self) -> int:
        """Memory that it takes."""
        return len(self.archive) + sum(len(cell.code) for cell in self.cells)


class Snapshots:
    """Keeps snapshots in memory until they are dropped or were not used for a time.

    Args:
        max_bytes: of all of them together.
        keep_s: seconds after its last use at which one is dropped.
        prefix: of their ids.
    """

    def __init__(self, max_bytes: int, keep_s: float, prefix: str = "") -> None:
        self._max_bytes, self._keep_s, self._prefix = max_bytes, keep_s, prefix
        self._kept: dict[str, Snapshot] = {}
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._bytes = 0

    @property
    def free(self) -> int:
        """Bytes that can still be taken."""
        return self._max_bytes - self._bytes

    def add(self, owner: str, archive: bytes, cells: tuple[PythonCall, ...]) -> Snapshot:
        """Keep a new one.

        Raises:
            QuotaFull: it does not fit beside the others.
        """
        named = self._prefix + secrets.token_hex(16)
        made = Snapshot(id=named, owner=owner, archive=archive, cells=cells)
        if made.bytes > self.free:
            reason = (
                f"a snapshot of {made.bytes >> 20} MiB does not fit: {self._bytes >> 20} of "
                f"{self._max_bytes >> 20} MiB (snapshot_mb) are taken; drop some"
            )
            raise QuotaFull(reason, retry_after_s=_RETRY_S)
        self._kept[made.id] = made
        self._count(made.bytes)
        self._use(made.id)
        return made

    def get(self, snapshot_id: str, owner: str) -> Snapshot:
        """One of an owner's.

        Raises:
            UnknownSnapshot: the owner has none of this name, or no more.
        """
        found = self._kept.get(snapshot_id)
        if found is None or found.owner != owner:
            raise UnknownSnapshot(snapshot_id)
        self._use(snapshot_id)
        return found

    def drop(self, snapshot_id: str, owner: str) -> None:
        """Forget one of an owner's.

        Raises:
            UnknownSnapshot: the owner has none of this name, or no more.
        """
        self._forget(self.get(snapshot_id, owner).id)

    def clear(self) -> None:
        """Forget all."""
        for snapshot_id in list(self._kept):
            self._forget(snapshot_id)

    def _use(self, snapshot_id: str) -> None:
        if snapshot_id in self._timers:
            self._timers[snapshot_id].cancel()
        loop = asyncio.get_running_loop()
        self._timers[snapshot_id] = loop.call_later(self._keep_s, self._forget, snapshot_id)

    def _forget(self, snapshot_id: str) -> None:
        self._timers.pop(snapshot_id).cancel()
        self._count(-self._kept.pop(snapshot_id).bytes)

    def _count(self, grown: int) -> None:
        self._bytes += grown
        WorkspaceMetrics.snapshots.set(self._bytes)
