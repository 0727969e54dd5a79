"""Copies of policy versions in host memory, as links send them."""

import threading
from dataclasses import dataclass

import torch
from cachetools import FIFOCache
from torch import Tensor

from services.protocol.weights.place import Place
from services.transport.bucket import Encoded, changes, whole

_NOTHING = torch.empty(0, dtype=torch.uint8)

SNAPSHOTS_KEPT = 2
"""Versions a rank can still send: the newest, and the one that late links may be sending."""


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """This rank's bytes of one version.

    Attributes:
        version: policy version.
        buckets: uint8 host tensors, the pieces of each bucket, not written again while the
            snapshot is held; a bucket may be empty.
        digests: blake3 hex of each bucket.
        itemsize: see `changed_unit`.
        place: see `services.transport.bucket.BucketSource`.
    """

    version: int
    buckets: tuple[tuple[Tensor, ...], ...]
    digests: tuple[str, ...]
    itemsize: int
    place: Place | None = None

    def bucket(self, index: int) -> Tensor:
        """A bucket in one piece."""
        pieces = self.buckets[index]
        return pieces[0] if len(pieces) == 1 else torch.cat([_NOTHING, *pieces])


class SnapshotStore:
    """The newest snapshots; the training thread puts, link threads get."""

    def __init__(self, kept: int = SNAPSHOTS_KEPT) -> None:
        self._lock = threading.Lock()
        self._snapshots: FIFOCache[int, Snapshot] = FIFOCache(kept)
        self._encoding = threading.Lock()
        # By version, base and bucket; None: sent whole, from memory that is used again later.
        self._encoded: dict[tuple[int, int, int], Encoded | None] = {}

    def put(self, snapshot: Snapshot) -> None:
        """Add or replace a version; the oldest beyond the limit goes."""
        with self._lock:
            self._snapshots[snapshot.version] = snapshot

    def get(self, version: int) -> Snapshot | None:
        """The version, or None when it is no longer or not yet here."""
        with self._lock:
            return self._snapshots.get(version)

    def source(self, version: int) -> "SnapshotSource | None":
        """The version as links send it, or None when it is no longer or not yet here."""
        snapshot = self.get(version)
        return SnapshotSource(snapshot, self) if snapshot is not None else None

    def changes(self, snapshot: Snapshot, bucket: int, base: int) -> Encoded:
        """A bucket for receivers that hold `base`; found once for all links."""
        key = snapshot.version, base, bucket
        old = self.get(base)
        with self._encoding:
            if key not in self._encoded:
                found = None
                if old is not None:
                    new, itemsize = snapshot.bucket(bucket), snapshot.itemsize
                    found = changes(new, old.bucket(bucket), base, itemsize)
                self._encoded = {k: v for k, v in self._encoded.items() if k[0] >= key[0]}
                self._encoded[key] = found
            return self._encoded[key] or whole(snapshot.bucket(bucket))


class SnapshotSource:
    """Implements `services.transport.bucket.BucketSource` with one snapshot of a store."""

    def __init__(self, snapshot: Snapshot, store: SnapshotStore) -> None:
        self._snapshot, self._store = snapshot, store
        self.version, self.bucket_count = snapshot.version, len(snapshot.buckets)
        self.place = snapshot.place

    def encoded(self, bucket: int, base: int | None) -> Encoded:
        """See `BucketSource`."""
        if base is None:
            return whole(self._snapshot.bucket(bucket))
        return self._store.changes(self._snapshot, bucket, base)
