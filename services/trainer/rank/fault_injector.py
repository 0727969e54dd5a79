"""Faults on purpose in the weights that a rank sends: for `millrace chaos`, where it is allowed."""

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from services.protocol.weights.place import Place
from services.protocol.weights.weight_bus import Link
from services.transport.bucket import BucketSource, Encoded
from services.transport.gloo import GlooLink, LinkBroken

SendFault = Literal["corrupt", "drop"]


class FaultInjector:
    """The rank's event loop injects faults, and its link threads take them."""

    def __init__(self, make_link: Callable[[Link, str], GlooLink]) -> None:
        self._make_link = make_link
        self._next: list[tuple[str, SendFault, int | None]] = []
        self._lock = threading.Lock()

    def inject(self, fault: SendFault, replica_id: str = "", bucket: int | None = None) -> None:
        """Inject a fault into the next send to a replica, any if not given, at a bucket.

        Without `bucket` the send fails half-way.
        """
        with self._lock:
            self._next.append((replica_id, fault, bucket))

    def make_link(self, link: Link, address: str) -> GlooLink:
        """The real end of a link, whose sends can fail."""
        end = self._make_link(link, address)
        send = end.send

        def faulty(source: BucketSource, base: int | None, *, cancelled: Callable[[], bool]) -> int:
            return send(self._faulty(source, link.replica_id), base, cancelled=cancelled)

        end.send = faulty  # type: ignore[method-assign, assignment]
        return end

    def _faulty(self, source: BucketSource, replica_id: str) -> BucketSource:
        """The source of a send to this replica, which begins now."""
        with self._lock:
            for index, (wanted, fault, bucket) in enumerate(self._next):
                if wanted in ("", replica_id):
                    del self._next[index]
                    at = source.bucket_count // 2 if bucket is None else bucket
                    return _FaultySource(source, fault, at)
        return source


class _FaultySource:
    """A version with one wrong bit, or that ends in the middle.

    Where only its place is sent, that is wrong, or is not sent.
    """

    def __init__(self, source: BucketSource, fault: SendFault, bucket: int) -> None:
        self._source, self._fault, self._bucket = source, fault, bucket
        self._done = False
        self.version, self.bucket_count = source.version, source.bucket_count

    @property
    def place(self) -> Place | None:
        """See `BucketSource`; the fault is in it."""
        place = self._source.place
        if self._done or place is None:
            return place
        self._done = True
        if self._fault == "drop":
            raise LinkBroken("dropped on purpose")
        return replace(place, serial=place.serial + 1)

    def encoded(self, bucket: int, base: int | None) -> Encoded:
        """The bucket; the fault is in the first one with a payload from the chosen one on."""
        encoded = self._source.encoded(bucket, base)
        if self._done or bucket < self._bucket or not encoded.payload.numel():
            return encoded
        self._done = True
        if self._fault == "drop":
            raise LinkBroken("dropped on purpose")
        wrong = encoded.payload.clone()
        wrong[-1] ^= 1
        return replace(encoded, payload=wrong)
