"""A policy version on its way in: received and checked in the background, beside what is served."""

import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future

from torch import Tensor

from services.protocol.weights.weight_bus import Link
from services.protocol.weights.weights import TensorSpec, WeightManifest
from services.transport.bucket import Encoded, Kind, apply_changes, digest
from services.transport.gloo import GlooLink
from services.transport.shared_memory import BufferPool
from services.transport.version_bytes import VersionBytes, block_bytes

OpenLink = Callable[[Link], GlooLink]
"""Opens a link or returns the one that is already open under its prefix."""


class StageFailed(RuntimeError):
    """A version could not be received whole; the served version is untouched."""


class StagedVersion:
    """Full tensors of one version, filled by one thread per trainer rank.

    Each thread owns the rank's dim-0 range of every tensor, so the threads never write to
    the same element. The memory can be mapped by other processes of this node; it goes back to
    its pool with this object.

    Attributes:
        manifest: the version.
        bytes: its tensors; whole when `done` has a result.
        place: where other processes find the block of `bytes`.
        done: seconds from the start to the last checked byte, or `StageFailed`.
    """

    def __init__(
        self,
        manifest: WeightManifest,
        links: tuple[Link, ...],
        open_link: OpenLink,
        *,
        pool: BufferPool,
        base: "StagedVersion | None" = None,
    ) -> None:
        """Start receiving.

        Args:
            manifest: what must arrive.
            links: one per trainer rank, in rank order.
            open_link: called in the receiving threads.
            pool: where the memory comes from.
            base: the version onto which changes may be sent.

        Raises:
            ValueError: the links do not match the manifest's ranks, or the base is of
                another shape.
        """
        if len(links) != manifest.world_size:
            raise ValueError(f"{len(links)} links for {manifest.world_size} trainer ranks")
        if base is not None and base.layout != (manifest.tensors, manifest.buckets):
            raise ValueError("the version has other tensors or buckets than its base")
        self._base = base
        self.manifest = manifest
        buffer = pool.take(block_bytes(manifest))
        weakref.finalize(self, pool.give, buffer)
        self.bytes, self.place = VersionBytes(manifest, buffer.bytes), buffer.place(0)
        self.done: Future[float] = Future()
        self.done.set_running_or_notify_cancel()  # a waiter that is cancelled cancels nothing here
        self._open_link = open_link
        self._waiting_for = set(range(len(links)))
        self._lock = threading.Lock()
        self._started = time.monotonic()
        for link in links:
            threading.Thread(
                target=self._receive, args=(link,), name=f"weights {link.prefix}", daemon=True
            ).start()

    @property
    def layout(self) -> tuple[tuple[TensorSpec, ...], tuple[tuple[int, int], ...]]:
        """What a version and the base of its changes must have in common."""
        return self.manifest.tensors, self.manifest.buckets

    @property
    def complete(self) -> bool:
        """Every byte of every rank is here and its digest is right."""
        return self.done.done() and self.done.exception() is None

    def abandon(self) -> None:
        """Drop the bytes; threads end at their next bucket or at their link's deadline."""
        self._fail("abandoned")

    def _fail(self, error: str) -> None:
        with self._lock:
            if not self.done.done():
                self.done.set_exception(StageFailed(error))

    def _receive(self, link: Link) -> None:
        opened: GlooLink | None = None
        try:
            opened = self._open_link(link)
            for bucket in range(len(self.manifest.buckets)):
                if self.done.done():
                    break
                self._receive_bucket(opened, link.trainer_rank, bucket)
        # Edge of the thread: every error becomes the receiver's vote.
        except Exception as error:  # noqa: BLE001
            self._fail(f"trainer rank {link.trainer_rank}: {error}")
        if self.done.done():  # the sender need not wait for its deadline
            if opened is not None:
                opened.close()
            return
        with self._lock:
            self._waiting_for.discard(link.trainer_rank)
            if not self._waiting_for and not self.done.done():
                self._base = None  # or every version would keep the one before
                self.done.set_result(time.monotonic() - self._started)

    def _receive_bucket(self, link: GlooLink, rank: int, bucket: int) -> None:
        encoded = link.receive_bucket(
            version=self.manifest.version,
            bucket=bucket,
            nbytes=self.manifest.bucket_bytes(rank, bucket),
        )
        payload = encoded.payload
        if encoded.kind is not Kind.FULL:
            payload = self._old_bytes(encoded, rank, bucket)
            first, _ = self.manifest.buckets[bucket]
            apply_changes(encoded, payload, self.manifest.tensors[first].dtype.itemsize)
        self.bytes.write(payload, rank, bucket)
        link.release()
        # Of what was copied, not of what was received: a sender's memory may change meanwhile.
        if digest(self.bytes.shards(rank, bucket)) != self.manifest.digests[rank][bucket]:
            raise ValueError(f"digest of bucket {bucket} is not the manifest's")

    def _old_bytes(self, encoded: Encoded, rank: int, bucket: int) -> Tensor:
        base = self._base
        if base is None or base.manifest.version != encoded.base:
            held = "none" if base is None else base.manifest.version
            raise ValueError(f"changes onto version {encoded.base} came, but the base is {held}")
        return base.bytes.shard_bytes(rank, bucket)
