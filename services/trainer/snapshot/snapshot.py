"""Host copies of this rank's shards, one per policy version, and their digests."""

import math
import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from services.protocol.weights.weights import Dtype, TensorSpec
from services.trainer.checkpoints.names import CheckpointNames, Part
from services.transport.bucket import Encoded, changes, digest, whole
from services.transport.shared_memory import BufferPool, Place

SNAPSHOTS_KEPT = 2
"""Versions a rank can still send: the newest, and the one that late links may be sending."""


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """This rank's bytes of one version.

    Attributes:
        version: policy version.
        buckets: uint8 host tensors, not written again while the snapshot is held; a bucket
            may be empty.
        places: where other processes of this node can read each bucket.
        digests: blake3 hex of each bucket.
        itemsize: bytes per element.
    """

    version: int
    buckets: tuple[Tensor, ...]
    places: tuple[Place, ...]
    digests: tuple[str, ...]
    itemsize: int

    def whole(self, bucket: int) -> Encoded:
        """A bucket as it is."""
        return whole(self.buckets[bucket], self.places[bucket])


class SnapshotShelf:
    """The newest snapshots; the training thread puts, link threads get."""

    def __init__(self, kept: int = SNAPSHOTS_KEPT) -> None:
        self._kept = kept
        self._lock = threading.Lock()
        self._snapshots: dict[int, Snapshot] = {}
        self._encoding = threading.Lock()
        # By version, base and bucket; None: sent whole, from memory that is used again later.
        self._encoded: dict[tuple[int, int, int], Encoded | None] = {}

    def put(self, snapshot: Snapshot) -> None:
        """Add or replace a version; the oldest beyond the limit goes."""
        with self._lock:
            self._snapshots.pop(snapshot.version, None)
            self._snapshots[snapshot.version] = snapshot
            while len(self._snapshots) > self._kept:
                del self._snapshots[next(iter(self._snapshots))]

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
                    new, itemsize = snapshot.buckets[bucket], snapshot.itemsize
                    found = changes(new, old.buckets[bucket], base, itemsize)
                self._encoded = {k: v for k, v in self._encoded.items() if k[0] >= key[0]}
                self._encoded[key] = found
            return self._encoded[key] or snapshot.whole(bucket)


class SnapshotSource:
    """Implements `services.transport.bucket.BucketSource` with one snapshot of a shelf."""

    def __init__(self, snapshot: Snapshot, shelf: SnapshotShelf) -> None:
        self._snapshot, self._shelf = snapshot, shelf

    @property
    def version(self) -> int:
        """See `BucketSource`."""
        return self._snapshot.version

    @property
    def bucket_count(self) -> int:
        """See `BucketSource`."""
        return len(self._snapshot.buckets)

    def encoded(self, bucket: int, base: int | None) -> Encoded:
        """See `BucketSource`."""
        if base is None:
            return self._snapshot.whole(bucket)
        return self._shelf.changes(self._snapshot, bucket, base)


def take_snapshot(
    version: int,
    shards: Iterable[Tensor],
    buckets: Sequence[tuple[int, int]],
    dtype: torch.dtype,
    pool: BufferPool,
) -> Snapshot:
    """Copy local shards into host memory.

    Args:
        version: name of the copy.
        shards: this rank's part of every parameter, in the manifest's order.
        buckets: half-open ranges of indexes into `shards`.
        dtype: element type on the wire.
        pool: gives the memory, and gets it back when nobody holds the snapshot any more.
    """
    copied = [shard.reshape(-1).to("cpu", dtype) for shard in shards]
    ends = list(accumulate((shard.numel() * dtype.itemsize for shard in copied), initial=0))
    buffer = pool.take(ends[-1])
    flat = buffer.bytes.view(dtype)
    torch.cat(copied, out=flat)
    copies = tuple(buffer.bytes[ends[first] : ends[last]] for first, last in buckets)
    snapshot = Snapshot(
        version=version,
        buckets=copies,
        places=tuple(buffer.place(ends[first]) for first, _ in buckets),
        digests=tuple(digest([copy]) for copy in copies),
        itemsize=dtype.itemsize,
    )
    weakref.finalize(snapshot, pool.give, buffer)
    return snapshot


def tensor_specs(
    parameters: Sequence[tuple[str, tuple[int, ...]]],
    numels: Sequence[Sequence[int]],
    names: CheckpointNames,
    dtype: Dtype,
) -> list[tuple[TensorSpec, ...]]:
    """What travels of each parameter, given as name and shape: the tensors that it holds.

    `numels[rank][i]` elements of parameter i are on that rank, and ranks hold consecutive
    parts of it.
    """
    return [
        tuple(_specs(names.parts(name, shape), [rank[index] for rank in numels], dtype))
        for index, (name, shape) in enumerate(parameters)
    ]


def _specs(parts: Sequence[Part], held: Sequence[int], dtype: Dtype) -> Iterator[TensorSpec]:
    ends = list(accumulate(held))
    start = 0
    for name, shape in parts:
        end = start + math.prod(shape)
        yield TensorSpec(
            name=name,
            dtype=dtype,
            shape=shape,
            shard_numels=tuple(
                max(0, min(end, last) - max(start, last - count))
                for last, count in zip(ends, held, strict=True)
            ),
        )
        start = end
