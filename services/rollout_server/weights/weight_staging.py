"""A policy version on its way in: received and checked beside the live model, in the background."""

import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch

from services.protocol.weights.weight_bus import Link, SendWeights
from services.protocol.weights.weights import TensorSpec, WeightManifest
from services.transport.bucket import Encoded, Kind, apply_changes, digest, whole
from services.transport.gloo import GlooLink, LinkBroken
from services.transport.links import make_link

OpenLink = Callable[[Link], GlooLink]
"""Opens a link or returns the one that is already open under its prefix."""


class StagedVersion:
    """Full tensors of one version, filled by one thread per trainer rank.

    Each thread owns the rank's dim-0 range of every tensor, so the threads never write to
    the same element. The model is not touched: a failure costs nothing but these bytes.
    """

    def __init__(
        self,
        manifest: WeightManifest,
        links: tuple[Link, ...],
        open_link: OpenLink,
        *,
        base: "StagedVersion | None" = None,
    ) -> None:
        """Start receiving.

        Args:
            manifest: what must arrive.
            links: one per trainer rank, in rank order.
            open_link: called in the receiving threads.
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
        self.seconds = 0.0
        self._open_link = open_link
        self._tensors = [_empty(spec) for spec in manifest.tensors]
        self._offsets = [_offsets(spec) for spec in manifest.tensors]
        self._waiting_for = set(range(len(links)))
        self._error: str | None = None
        self._abandoned = False
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
    def error(self) -> str | None:
        """What went wrong on the first link that failed."""
        with self._lock:
            return self._error

    @property
    def complete(self) -> bool:
        """Every byte of every rank is here and its digest is right."""
        with self._lock:
            return self._error is None and not self._waiting_for

    def named_tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Checkpoint names and full tensors on the host, in manifest order."""
        for spec, tensor in zip(self.manifest.tensors, self._tensors, strict=True):
            yield spec.name, tensor.view(spec.shape)

    def abandon(self) -> None:
        """Drop the bytes; threads end at their next bucket or at their link's deadline."""
        with self._lock:
            self._abandoned = True
            self._error = self._error or "abandoned"

    def _receive(self, link: Link) -> None:
        try:
            opened = self._open_link(link)
            for bucket in range(len(self.manifest.buckets)):
                if self._abandoned or self._error:
                    return
                self._receive_bucket(opened, link.trainer_rank, bucket)
        # Edge of the thread: every error becomes the replica's vote.
        except Exception as error:  # noqa: BLE001
            with self._lock:
                self._error = self._error or f"trainer rank {link.trainer_rank}: {error}"
            return
        with self._lock:
            self._waiting_for.discard(link.trainer_rank)
            if not self._waiting_for:
                self._base = None  # or every version would keep the one before
                self.seconds = time.monotonic() - self._started

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
        self._place(payload, rank, bucket)
        link.release()
        # Of what was copied, not of what was received: a sender's memory may change meanwhile.
        if digest(self._shards(rank, bucket)) != self.manifest.digests[rank][bucket]:
            raise ValueError(f"digest of bucket {bucket} is not the manifest's")

    def shard_bytes(self, rank: int, bucket: int) -> torch.Tensor:
        """What trainer rank `rank` sends of a bucket: uint8, fresh."""
        return torch.cat([torch.empty(0, dtype=torch.uint8), *self._shards(rank, bucket)])

    def _shards(self, rank: int, bucket: int) -> Iterator[torch.Tensor]:
        """Where the bytes of trainer rank `rank` belong, uint8, in the order of the wire."""
        for index in range(*self.manifest.buckets[bucket]):
            first = self._offsets[index][rank]
            numel = self.manifest.tensors[index].shard_numels[rank]
            # Bytes to bytes: a shard may start at an offset that its type is not aligned to.
            yield self._tensors[index][first : first + numel].view(torch.uint8)

    def _old_bytes(self, encoded: Encoded, rank: int, bucket: int) -> torch.Tensor:
        base = self._base
        if base is None or base.manifest.version != encoded.base:
            held = "none" if base is None else base.manifest.version
            raise ValueError(f"changes onto version {encoded.base} came, but the base is {held}")
        return base.shard_bytes(rank, bucket)

    def _place(self, payload: torch.Tensor, rank: int, bucket: int) -> None:
        at = 0
        for target in self._shards(rank, bucket):
            target.copy_(payload[at : at + len(target)])
            at += len(target)


class CopySource:
    """Implements `services.transport.bucket.BucketSource`: a replica's copy in the place of
    the trainer rank that once sent it."""

    def __init__(self, copy: StagedVersion, rank: int) -> None:
        self._copy, self._rank = copy, rank

    @property
    def version(self) -> int:
        """See `BucketSource`."""
        return self._copy.manifest.version

    @property
    def bucket_count(self) -> int:
        """See `BucketSource`."""
        return len(self._copy.manifest.buckets)

    def encoded(self, bucket: int, base: int | None) -> Encoded:
        """See `BucketSource`; always whole, for a copy knows no version before its own."""
        return whole(self._copy.shard_bytes(self._rank, bucket))


class PeerSender:
    """One send of one copy over one link, on a thread of its own; every step has the link's
    deadline, so it ends.

    Attributes:
        state: whether it is `done`, why it failed (`error`), and payload bytes (`sent_bytes`).
    """

    def __init__(self, order: SendWeights, copy: StagedVersion | None, address: str) -> None:
        self._order, self._address = order, address
        self._cancelled = False
        self.state: dict[str, Any] = {"done": False, "error": None, "sent_bytes": 0}
        if copy is None or copy.manifest.version != order.version:
            self.state = {"done": True, "error": "superseded", "sent_bytes": 0}
            return
        source = CopySource(copy, order.link.trainer_rank)
        threading.Thread(
            target=self._send, args=(source,), name=f"seed {order.link.prefix}", daemon=True
        ).start()

    def cancel(self) -> None:
        """End at the next bucket, or at the link's deadline."""
        self._cancelled = True

    def _send(self, source: CopySource) -> None:
        link = make_link(self._order.link, self._address)
        try:
            link.open()
            sent = link.send(source, None, cancelled=lambda: self._cancelled)
        except LinkBroken as broken:
            self.state = {"done": True, "error": str(broken), "sent_bytes": 0}
        else:
            self.state = {"done": True, "error": None, "sent_bytes": sent}
        finally:
            link.close()


def _empty(spec: TensorSpec) -> torch.Tensor:
    return torch.empty(math.prod(spec.shape), dtype=getattr(torch, spec.dtype.value))


def _offsets(spec: TensorSpec) -> list[int]:
    """First element of each rank's shard in the flattened full tensor."""
    return [sum(spec.shard_numels[:rank]) for rank in range(len(spec.shard_numels))]
