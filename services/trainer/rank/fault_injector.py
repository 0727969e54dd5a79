"""What a trainer rank sends, spoilt on purpose: for `millrace chaos`, where it is allowed."""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from services.protocol.weights.weight_bus import Link
from services.transport.bucket import BucketSource, Encoded
from services.transport.gloo import GlooLink, LinkBroken
from services.transport.links import make_link

Spoiling = Literal["corrupt", "drop"]


class FaultInjector:
    """Told by the rank's event loop, asked by its link threads."""

    def __init__(self) -> None:
        self._next: list[tuple[str, Spoiling, int | None]] = []
        self._lock = threading.Lock()

    def spoil(self, how: Spoiling, replica_id: str = "", bucket: int | None = None) -> None:
        """Spoil the next send to a replica, or to whichever is next, at a bucket or half-way."""
        with self._lock:
            self._next.append((replica_id, how, bucket))

    def pass_source(self, source: BucketSource, replica_id: str) -> BucketSource:
        """What a send to this replica, which begins now, sends."""
        with self._lock:
            for index, (wanted, how, bucket) in enumerate(self._next):
                if wanted in ("", replica_id):
                    del self._next[index]
                    at = source.bucket_count // 2 if bucket is None else bucket
                    return _Spoilt(source, how, at)
        return source

    def make_link(self, link: Link, address: str) -> GlooLink:
        """The real end of a link, under sources that can go wrong."""
        end = make_link(link, address)
        send = end.send

        def spoilt(source: BucketSource, base: int | None, *, cancelled: Callable[[], bool]) -> int:
            return send(self.pass_source(source, link.replica_id), base, cancelled=cancelled)

        end.send = spoilt  # type: ignore[method-assign, assignment]
        return end


class _Spoilt:
    """A version with one wrong bit in the middle, or that ends there."""

    def __init__(self, source: BucketSource, how: Spoiling, bucket: int) -> None:
        self._source, self._how, self._bucket = source, how, bucket
        self._done = False
        self.version, self.bucket_count = source.version, source.bucket_count

    def encoded(self, bucket: int, base: int | None) -> Encoded:
        """The bucket; from the chosen one on, the first with a payload is spoilt."""
        encoded = self._source.encoded(bucket, base)
        if self._done or bucket < self._bucket or not encoded.payload.numel():
            return encoded
        self._done = True
        if self._how == "drop":
            raise LinkBroken("dropped on purpose")
        wrong = encoded.payload.clone()
        wrong[-1] ^= 1
        return replace(encoded, payload=wrong, place=None)
