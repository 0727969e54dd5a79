"""The rendezvous of a link's members: the bus's store, through one connection.

Every `TCPStore` client that torch connects looks its own address up in the DNS for a log
line, which takes seconds where a resolver is slow or drops a question. A client also waits
with its lock held, so that links could not share one. Therefore a process keeps a single
client for each store and asks it in short questions only.
"""

import threading
import time
from datetime import timedelta

from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]

_POLL_S = 0.005
_CONNECT_TIMEOUT = timedelta(seconds=10)

_clients: dict[tuple[str, int], TCPStore] = {}
_lock = threading.Lock()


def connect(host: str, port: int) -> TCPStore:
    """This process's client of a store.

    Raises:
        RuntimeError: the store does not answer.
    """
    with _lock:
        client = _clients.get((host, port))
        if client is None:
            client = TCPStore(
                host, port, is_master=False, wait_for_workers=False, timeout=_CONNECT_TIMEOUT
            )
            _clients.clear()  # a process follows one bus at a time
            _clients[(host, port)] = client
        return client


def disconnect(client: TCPStore) -> None:
    """Have the next `connect` make a new client: this one has failed."""
    with _lock:
        for place, known in list(_clients.items()):
            if known is client:
                del _clients[place]


class Rendezvous(Store):
    """The keys under one prefix, for one link and one deadline."""

    def __init__(self, client: TCPStore, prefix: str, timeout_s: float) -> None:
        super().__init__()
        self._client, self._prefix = client, prefix
        self._deadline = time.monotonic() + timeout_s

    def set(self, key: str, value: str) -> None:
        """Write a key."""
        self._client.set(self._at(key), value)

    def get(self, key: str) -> bytes:
        """Read a key as soon as it is there.

        Raises:
            RuntimeError: it was not, by the deadline.
        """
        self.wait([key])
        return self._client.get(self._at(key))

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        """Wait for keys; see `get`."""
        places = [self._at(key) for key in keys]
        while not self._client.check(places):
            if time.monotonic() > self._deadline:
                raise RuntimeError(f"{places} were not written in time")
            time.sleep(_POLL_S)

    def _at(self, key: str) -> str:
        return f"{self._prefix}/{key}"
