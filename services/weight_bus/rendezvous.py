"""The store at which the two ends of a link meet; it outlives trainer ranks and replicas."""

import asyncio
from datetime import timedelta


class Rendezvous:
    """A TCPStore server on this node, created at the first use."""

    def __init__(self, host: str, *, timeout_s: float) -> None:
        self._host = host
        self._timeout_s = timeout_s
        self._store: object | None = None
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
