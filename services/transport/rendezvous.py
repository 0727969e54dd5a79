"""The rendezvous of a link's members: the bus's store, through one connection.

Every `TCPStore` client that torch connects looks its own address up in the DNS for a log
line, which takes seconds where a resolver is slow or drops a question. A client also waits
with its lock held, so that links could not share one. Therefore a process keeps a single
client for each store and asks it in short questions only.
"""

import atexit
import threading
import time
import weakref
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import timedelta

from torch.distributed import Store, TCPStore  # type: ignore[attr-defined]

_POLL_S = 0.005
_CONNECT_S = 10.0
_PAUSE_S = 10.0


@dataclass(eq=False)
class _Connection:
    """A client, or the attempt to connect it.

    The attempt has a thread of its own: torch waits without end for a store that accepts a
    connection and then says nothing, whatever the timeout.
    """

    began: float = field(default_factory=time.monotonic)
    client: Future[TCPStore] = field(default_factory=Future)

    @property
    def lost(self) -> bool:
        """It failed, or takes too long."""
        if self.client.done():
            return self.client.exception() is not None
        return time.monotonic() - self.began > _CONNECT_S

    def attempt(self, host: str, port: int) -> None:
        """Connect; called by its thread."""
        limit = timedelta(seconds=_CONNECT_S)
        try:
            client = TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=limit)
        # Edge of the thread: every error becomes that of the links which wait.
        except Exception as error:  # noqa: BLE001
            self.client.set_exception(RuntimeError(str(error)))
        else:
            self.client.set_result(client)


_connections: dict[tuple[str, int], _Connection] = {}
_attempts: "weakref.WeakSet[threading.Thread]" = weakref.WeakSet()
_lock = threading.Lock()


def connect(host: str, port: int, timeout_s: float = _CONNECT_S) -> TCPStore:
    """This process's client of a store.

    Raises:
        RuntimeError: the store does not answer in time.
    """
    with _lock:
        known = _connections.get((host, port))
        if known is None or known.lost:
            known = _Connection()
            _connections.clear()  # a process follows one bus at a time
            _connections[(host, port)] = known
            name = f"store {host}:{port}"
            thread = threading.Thread(
                target=known.attempt, args=(host, port), name=name, daemon=True
            )
            _attempts.add(thread)
            thread.start()
    try:
        return known.client.result(timeout_s)
    except TimeoutError:
        raise RuntimeError(f"the store at {host}:{port} does not answer") from None


@atexit.register
def _outlast_attempts() -> None:
    """An error that torch raises in a thread while Python ends would abort the process."""
    # Torch tries once more after its deadline, behind a random pause of seconds.
    until = time.monotonic() + 2 * _CONNECT_S + _PAUSE_S
    for thread in list(_attempts):
        thread.join(max(0.0, until - time.monotonic()))


def disconnect(client: TCPStore) -> None:
    """Have the next `connect` make a new client: this one has failed."""
    with _lock:
        for place, known in list(_connections.items()):
            if known.client.done() and not known.lost and known.client.result() is client:
                del _connections[place]


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
