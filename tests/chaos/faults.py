"""Where a trainer rank stands still in a push, until it is told to go on."""

import threading
from typing import Any

from services.protocol.weights.place import Place
from services.transport.bucket import BucketSource, Encoded
from services.transport.gloo import GlooLink

HOLD_S = 60.0


class Faults:
    """Told by the test through the rank's event loop, asked by the rank's link threads."""

    def __init__(self) -> None:
        self._held_at: dict[str, int] = {}
        self._waiting: set[str] = set()
        self._changed = threading.Condition()

    def hold(self, replica_ids: list[str], bucket: int) -> None:
        """Stop sends to these replicas before this bucket, until `release`."""
        with self._changed:
            self._held_at |= dict.fromkeys(replica_ids, bucket)

    def wait_until_held(self, replica_ids: list[str]) -> None:
        """Return when a send to each of them has stopped."""
        with self._changed:
            held = self._changed.wait_for(lambda: self._waiting >= set(replica_ids), HOLD_S)
            assert held, f"only {self._waiting} of {replica_ids} were sent to"

    def release(self) -> None:
        """Let all sends go on."""
        with self._changed:
            self._held_at.clear()
            self._waiting.clear()
            self._changed.notify_all()

    def wait_at(self, replica_id: str, bucket: int | None) -> None:
        """Return when the time has come to send a bucket; None: the place of all."""
        with self._changed:
            if bucket is None:
                bucket = self._held_at.get(replica_id, -1)
            if self._held_at.get(replica_id) == bucket:
                self._waiting.add(replica_id)
                self._changed.notify_all()
                self._changed.wait_for(lambda: replica_id not in self._held_at, HOLD_S)


FAULTS = Faults()
"""Of this process, which is one rank."""


class FaultySource:
    """A version as fast as `FAULTS` let it pass."""

    def __init__(self, source: BucketSource, replica_id: str) -> None:
        self._source, self._replica_id = source, replica_id
        self.version, self.bucket_count = source.version, source.bucket_count

    @property
    def place(self) -> Place | None:
        if self._source.place is not None:
            FAULTS.wait_at(self._replica_id, None)
        return self._source.place

    def encoded(self, bucket: int, base: int | None) -> Encoded:
        FAULTS.wait_at(self._replica_id, bucket)
        return self._source.encoded(bucket, base)


class FaultyLink(GlooLink):
    """The real link, under a source that can stand still."""

    def send(self, source: BucketSource, base: int | None, **options: Any) -> int:
        return super().send(FaultySource(source, self.link.replica_id), base, **options)
