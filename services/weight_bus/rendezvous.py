"""The store at which the two ends of a link meet; it outlives trainer ranks and replicas."""

import asyncio
from datetime import timedelta
from typing import Any

from services.observability.log import Log

log = Log("weight_bus")


class Rendezvous:
    """A TCPStore server on this node, created at the first use."""

    def __init__(self, host: str, *, timeout_s: float) -> None:
        self._host = host
        self._timeout_s = timeout_s
        self._store: Any = None  # a TCPStore, whose methods torch's stubs do not know
        self._deletions: set[asyncio.Task[None]] = set()
        self._port = 0
        self._lock = asyncio.Lock()

    async def address(self) -> tuple[str, int]:
        """Host and port of the store.

        Raises:
            RuntimeError: the store cannot listen.
        """
        async with self._lock:
            if self._store is None:
                # In a thread: importing torch takes seconds and members must be answered.
                await asyncio.to_thread(self._create)
        return self._host, self._port

    def forget(self, prefix: str) -> None:
        """Delete the keys of links that have been opened and never will be again.

        Beside the bus's own work: the store may take a moment to answer.
        """
        if self._store is not None:
            task = asyncio.create_task(asyncio.to_thread(self._delete, prefix), name=f"-{prefix}")
            self._deletions.add(task)
            task.add_done_callback(self._deletions.discard)

    def _delete(self, prefix: str) -> None:
        try:
            for key in self._store.list_keys():
                if key.startswith(prefix):
                    self._store.delete_key(key)
        except RuntimeError as error:  # what stays costs only memory
            log.warning("keys not deleted", prefix=prefix, why=str(error))

    def _create(self) -> None:
        # The only use of torch in the bus, whose rules are tested without it.
        from torch.distributed import TCPStore  # type: ignore[attr-defined]

        store = TCPStore(
            self._host,
            0,
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=self._timeout_s),
        )
        self._store, self._port = store, store.port
