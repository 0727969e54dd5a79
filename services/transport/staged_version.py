"""A policy version on its way in: received and checked in the background, beside what is served."""

import threading
import time
import weakref
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from torch import Tensor

from services.protocol.weights.weight_bus import Link
from services.protocol.weights.weights import TensorSpec, WeightManifest, changed_unit
from services.transport.bucket import NOT_YET, Encoded, Kind, apply_changes, changes, digest, whole
from services.transport.gloo import GlooLink, LinkBroken
from services.transport.shared_memory import HeldBuffer, SharedBuffer
from services.transport.version_bytes import VersionBytes, block_bytes

OpenLink = Callable[[Link], GlooLink]
"""Opens a link or returns the one that is already open under its prefix."""


class StageFailed(RuntimeError):
    """A version could not be received whole; the served version is untouched."""


class StagedVersion:
    """Full tensors of one version, filled by one thread per link.

    Each thread owns a trainer rank's dim-0 range of the tensors in the buckets of its stripe, so
    the threads never write to the same element. An attempt that fails leaves the buckets that have
    arrived, and the next one goes on behind them. Others can be sent a bucket once it is here.

    Attributes:
        manifest: the version.
        buffer: the memory of its tensors, which other processes of this node can map.
        bytes: its tensors; whole when `complete`.
    """

    def __init__(
        self,
        manifest: WeightManifest,
        buffer: SharedBuffer | HeldBuffer,
        *,
        base: "StagedVersion | None" = None,
        is_written: bool = False,
    ) -> None:
        """Make a place for a version.

        Args:
            manifest: what must arrive.
            buffer: at least `block_bytes(manifest)`; may be the base's, which goes with it.
            base: the version onto which changes may be sent.
            is_written: all trainer ranks have written their bytes into the buffer. They made the
                manifest's digests of these very bytes.

        Raises:
            ValueError: the base is of another shape.
        """
        if base is not None and base.layout != (manifest.tensors, manifest.buckets):
            raise ValueError("the version has other tensors or buckets than its base")
        self.manifest, self.buffer, self._base = manifest, buffer, base
        self.bytes = VersionBytes(manifest, buffer.bytes[: block_bytes(manifest)])
        here = range(len(manifest.buckets)) if is_written else ()
        self._arrived = [set(here) for _ in range(manifest.world_size)]
        self._changes: dict[tuple[int, int], Encoded] = {}
        self._before = base if is_written else None  # nobody has sent what changed since
        self._unit = changed_unit(manifest.tensors)
        self._moved = threading.Condition()
        self._writing = [threading.Lock() for _ in self._arrived]
        self._attempt: Future[float] = Future()
        self._retired = False

    @property
    def layout(self) -> tuple[tuple[TensorSpec, ...], tuple[tuple[int, int], ...]]:
        """What a version and the base of its changes must have in common."""
        return self.manifest.tensors, self.manifest.buckets

    @property
    def complete(self) -> bool:
        """Every byte of every rank is here and its digest is right."""
        return all(len(here) == len(self.manifest.buckets) for here in self._arrived)

    def receive(
        self,
        links: tuple[Link, ...],
        open_link: OpenLink,
        blocks: Mapping[int, HeldBuffer] = MappingProxyType({}),
    ) -> Future[float]:
        """Begin an attempt: receive what is not here yet.

        Args:
            links: those of every trainer rank, in rank order.
            open_link: called in the receiving threads.
            blocks: into which trainer ranks of this node have written, in place of their links.

        Returns:
            Seconds from its start to the last checked byte, or `StageFailed`.

        Raises:
            ValueError: the links do not match the manifest's ranks.
        """
        ranks, stripes = self.manifest.world_size, links[0].stripes if links else 1
        given = [(link.trainer_rank, link.stripe, link.stripes) for link in links]
        if given != [(rank, one, stripes) for rank in range(ranks) for one in range(stripes)]:
            raise ValueError(f"{len(links)} links for {ranks} trainer ranks")
        attempt = self._attempt = Future()
        attempt.set_running_or_notify_cancel()  # a waiter that is cancelled cancels nothing here
        began = time.monotonic()
        self._end_if_complete(attempt, began)
        for link in links:
            block = blocks.get(link.trainer_rank)
            if block is None:
                work = partial(_receive, weakref.ref(self), link, open_link, attempt, began)
            elif link.stripe == 0 and not self.complete:
                work = partial(self._copy, block, link.trainer_rank, attempt, began)
            else:
                continue
            name = f"weights {link.prefix}"
            threading.Thread(target=work, name=name, daemon=True).start()
        return attempt

    def stop(self, error: str = "abandoned") -> None:
        """End the attempt; after it nothing is written any more, and its threads end at their next
        bucket or at their link's deadline."""
        self.fail(self._attempt, error)
        for lock in self._writing:
            with lock:
                pass

    def retire(self) -> None:
        """The memory is about to be used for another version: nobody is sent this one any more."""
        self.stop("superseded")
        # The error of a failed attempt knows the frames that it came through, and so this version:
        # the memory would stay until Python looks for circles.
        self._attempt = Future()
        self.forget_changes()
        with self._moved:
            self._retired = True
            self._moved.notify_all()

    def forget_changes(self) -> None:
        """Send others whole buckets from now on: what had changed is no longer kept."""
        self._changes, self._before = {}, None

    def encoded(self, rank: int, bucket: int, base: int | None, timeout_s: float) -> Encoded:
        """What trainer rank `rank` sent of a bucket, as soon as it is here; `NOT_YET` before.

        Args:
            rank: see above.
            bucket: see above.
            base: version that the receiver holds; whole if that does not help.
            timeout_s: longest wait, seconds.

        Raises:
            LinkBroken: another version takes this one's place.
        """
        with self._moved:
            self._moved.wait_for(
                lambda: self._retired or bucket in self._arrived[rank], timeout=timeout_s
            )
            if self._retired:
                raise LinkBroken("superseded")
            if bucket not in self._arrived[rank]:
                return NOT_YET
        changed = self._changes.get((rank, bucket)) or self._find_changes(rank, bucket, base)
        if changed is not None and changed.base == base:
            return changed
        payload = self.bytes.shard_bytes(rank, bucket)
        if self._retired:
            raise LinkBroken("superseded")
        return whole(payload)

    def fail(self, attempt: Future[float], error: str) -> None:
        """End an attempt, unless it has ended."""
        with self._moved:
            if not attempt.done():
                attempt.set_exception(StageFailed(error))

    def fill(self, link: Link, opened: GlooLink, attempt: Future[float], began: float) -> None:
        """Receive over an open link what has not come over it yet; called by its thread."""
        try:
            here, first = self._arrived[link.trainer_rank], link.stripe
            while first in here:
                first += link.stripes
            opened.ask(self.manifest.version, first)
            for bucket in range(first, len(self.manifest.buckets), link.stripes):
                self._receive_bucket(opened, link.trainer_rank, bucket, attempt)
        # Edge of the thread: every error becomes the receiver's vote.
        except Exception as error:  # noqa: BLE001
            self.fail(attempt, f"trainer rank {link.trainer_rank}: {error}")
        self._end_if_complete(attempt, began)

    def _end_if_complete(self, attempt: Future[float], began: float) -> None:
        with self._moved:
            if self.complete and not attempt.done():
                self._base = None  # or every version would keep the one before
                attempt.set_result(time.monotonic() - began)

    def _find_changes(self, rank: int, bucket: int, base: int | None) -> Encoded | None:
        """What changed of a bucket since the version before, if nobody has sent that."""
        before = self._before
        if before is None or before.manifest.version != base:
            return None
        new, old = (one.bytes.shard_bytes(rank, bucket) for one in (self, before))
        found = changes(new, old, base, self._unit)
        if found is not None:
            self._changes[rank, bucket] = found
        return found

    def _copy(self, block: HeldBuffer, rank: int, attempt: Future[float], began: float) -> None:
        """Copy what a trainer rank of this node has written; called by a thread."""
        written = VersionBytes(self.manifest, block.bytes)
        try:
            for bucket in range(len(self.manifest.buckets)):
                with self._writing[rank]:
                    if attempt.done():
                        return
                    self.bytes.write(written.shard_bytes(rank, bucket), rank, bucket)
                self._take(rank, bucket, attempt)
        except ValueError as error:
            self.fail(attempt, f"trainer rank {rank}: {error}")
        self._end_if_complete(attempt, began)

    def _receive_bucket(
        self, link: GlooLink, rank: int, bucket: int, attempt: Future[float]
    ) -> None:
        encoded = NOT_YET
        while encoded.kind is Kind.WAIT and not attempt.done():
            encoded = link.receive_bucket(
                version=self.manifest.version,
                bucket=bucket,
                nbytes=self.manifest.bucket_bytes(rank, bucket),
            )
        with self._writing[rank]:
            if attempt.done():  # the memory may be another version's by now
                raise StageFailed("abandoned")
            payload = encoded.payload
            if encoded.kind is not Kind.FULL:
                payload = self._old_bytes(encoded, rank, bucket)
                apply_changes(encoded, payload, self._unit)
                kept = replace(encoded, payload=encoded.payload.clone())
                self._changes[rank, bucket] = kept
            self.bytes.write(payload, rank, bucket)
        self._take(rank, bucket, attempt)

    def _take(self, rank: int, bucket: int, attempt: Future[float]) -> None:
        """Check a bucket that was written here, and let others be sent it.

        Raises:
            ValueError: its bytes are not the manifest's.
        """
        if digest(self.bytes.shards(rank, bucket)) != self.manifest.digests[rank][bucket]:
            raise ValueError(f"digest of bucket {bucket} is not the manifest's")
        with self._moved:
            if not attempt.done():
                self._arrived[rank].add(bucket)
                self._moved.notify_all()

    def _old_bytes(self, encoded: Encoded, rank: int, bucket: int) -> Tensor:
        base = self._base
        if base is None or base.manifest.version != encoded.base:
            held = "none" if base is None else base.manifest.version
            raise ValueError(f"changes onto version {encoded.base} came, but the base is {held}")
        return base.bytes.shard_bytes(rank, bucket)


def _receive(
    held: "weakref.ref[StagedVersion]",
    link: Link,
    open_link: OpenLink,
    attempt: Future[float],
    began: float,
) -> None:
    """Open a link and receive; while it is being opened, the memory of a version that is
    superseded meanwhile can go."""
    try:
        opened = open_link(link)
    # Edge of the thread: every error becomes the receiver's vote.
    except Exception as error:  # noqa: BLE001
        if (staged := held()) is not None:
            staged.fail(attempt, f"trainer rank {link.trainer_rank}: {error}")
        return
    if (staged := held()) is not None:
        staged.fill(link, opened, attempt, began)
    if attempt.done() and attempt.exception() is not None:
        opened.close()  # the sender need not wait for its deadline
