"""Which replicas there are, and where each listens for requests that another one got.

The id of a workspace begins with the name of the replica that has it. A replica is known by what
it wrote into the cluster's key-value store before it opened its first workspace.
"""

import asyncio
import json
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field
from typing import Protocol

from services.cluster_kv import ClusterValue, values_below
from services.observability.log import Log
from services.protocol.errors import NotReady

_PREFIX = "workspace_replica/"
_ID = re.compile(r"([a-z0-9]{1,64})-[0-9a-f]{16,64}")
_LOG = Log("sandboxes")


def replica_of(workspace_id: str) -> str | None:
    """The name of the replica that gave the id, None if none could have."""
    found = _ID.fullmatch(workspace_id)
    return found[1] if found else None


@dataclass(frozen=True, kw_only=True)
class ReplicaAddress:
    """Where a replica takes requests of the others.

    Attributes:
        name: of the replica, unique among all that ever were.
        url: of its listener, without a path.
        secret: what requests must show there.
    """

    name: str
    url: str
    secret: str = field(repr=False)


class ReplicaStore(Protocol):
    """A place for texts by name that outlives its writers."""

    async def write(self, name: str, text: str) -> None:
        """Keep a text."""

    async def erase(self, name: str) -> None:
        """Forget a text."""

    async def read(self) -> dict[str, str]:
        """All texts."""


class ClusterReplicaStore:
    """The key-value store of Ray's head."""

    async def write(self, name: str, text: str) -> None:
        """See `ReplicaStore`."""
        await ClusterValue(_PREFIX + name).write(text)

    async def erase(self, name: str) -> None:
        """See `ReplicaStore`."""
        await ClusterValue(_PREFIX + name).erase()

    async def read(self) -> dict[str, str]:
        """See `ReplicaStore`."""
        return await values_below(_PREFIX)


class ReplicaTable:
    """The replicas as this one knows them.

    Args:
        own: this replica.
        store: shared by all of them.
        running: names of those that Serve has; None where it does not answer.

    Attributes:
        own: this replica.
    """

    def __init__(
        self,
        own: ReplicaAddress,
        store: ReplicaStore,
        running: Callable[[], Awaitable[set[str] | None]],
    ) -> None:
        self.own = own
        self._store, self._running = store, running
        self._known = {own.name: own}
        self._reading, self._read_at = asyncio.Lock(), -1.0

    async def register(self) -> None:
        """Let the others find this replica.

        Raises:
            NotReady: the store cannot be reached.
        """
        await self._store.write(self.own.name, json.dumps(asdict(self.own)))

    async def leave(self) -> None:
        """This replica ends; best effort, since others find that out by themselves."""
        await self._erase(self.own.name)

    async def find(self, name: str) -> ReplicaAddress | None:
        """The replica of this name; None if there is none any more, so its workspaces are lost.

        Raises:
            NotReady: the store cannot be reached.
        """
        if name not in self._known:
            await self._read()
        return self._known.get(name)

    async def others(self) -> list[ReplicaAddress]:
        """All replicas but this one.

        Raises:
            NotReady: the store cannot be reached.
        """
        await self._read()
        return [one for one in self._known.values() if one.name != self.own.name]

    async def lost(self, address: ReplicaAddress, *, refused: bool) -> bool:
        """Whether a replica that does not answer is gone for good.

        Args:
            address: of the replica.
            refused: nothing listens there any more, so its process is gone.
        """
        if not refused:
            running = await self._running()
            if running is None or address.name in running:
                return False
        _LOG.warning("workspace_replica_lost", replica=address.name, url=address.url)
        self._known.pop(address.name, None)
        await self._erase(address.name)
        return True

    async def _read(self) -> None:
        """Read the store; callers that come during a read share the next one."""
        asked_at = time.monotonic()
        async with self._reading:
            if self._read_at > asked_at:
                return
            began_at = time.monotonic()
            texts = await self._store.read()
            found = [ReplicaAddress(**json.loads(text)) for text in texts.values()]
            self._known = {one.name: one for one in found} | {self.own.name: self.own}
            self._read_at = began_at

    async def _erase(self, name: str) -> None:
        try:
            await self._store.erase(name)
        except NotReady as problem:
            _LOG.warning("workspace_replica_not_erased", replica=name, problem=str(problem))
