"""What a trainer rank does wrong on the wire, at an exact place of a push."""

import threading
from typing import Any

from services.transport.bucket import BucketSource, Encoded, whole
from services.transport.gloo import GlooLink

HOLD_S = 60.0


class Faults:
    """Told by the test through the rank's event loop, asked by the rank's link threads."""

    def __init__(self) -> None:
        self._held_at: dict[str, int] = {}
        self._waiting: set[str] = set()
        self._corrupt: dict[str, int] = {}
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

    def corrupt(self, replica_id: str, bucket: int) -> None:
        """Turn one bit of this bucket in the next send to the replica."""
        self._corrupt[replica_id] = bucket

    def pass_bucket(self, replica_id: str, bucket: int, encoded: Encoded) -> Encoded:
        """What is sent for a bucket, when the time has come to send it."""
        with self._changed:
            if self._held_at.get(replica_id) == bucket:
                self._waiting.add(replica_id)
                self._changed.notify_all()
                self._changed.wait_for(lambda: replica_id not in self._held_at, HOLD_S)
        if self._corrupt.get(replica_id) != bucket:
            return encoded
        del self._corrupt[replica_id]
        wrong = encoded.payload.clone()
        wrong[0] ^= 1
        return whole(wrong)


FAULTS = Faults()
"""Of this process, which is one rank."""


class FaultySource:
    """A version as `FAULTS` let it pass."""

    def __init__(self, source: BucketSource, replica_id: str) -> None:
        self._source, self._replica_id = source, replica_id
        self.version, self.bucket_count = source.version, source.bucket_count

    def encoded(self, bucket: int, base: int | None) -> Encoded:
        encoded = self._source.encoded(bucket, base)
        return FAULTS.pass_bucket(self._replica_id, bucket, encoded)


class FaultyLink(GlooLink):
    """The real link, under a source that can go wrong."""

    def send(self, source: BucketSource, base: int | None, **options: Any) -> int:
        return super().send(FaultySource(source, self.link.replica_id), base, **options)
