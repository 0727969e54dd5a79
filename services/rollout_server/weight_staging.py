"""A policy version on its way in: received and checked beside the live model, in the background."""

import hashlib
import math
import threading
import time
from collections.abc import Callable, Iterator

import torch

from services.protocol.weight_bus import Link
from services.protocol.weights import TensorSpec, WeightManifest
from services.rollout_server.weight_link import WeightLink

OpenLink = Callable[[Link], WeightLink]
"""Opens a link or returns the one that is already open under its prefix."""


class StagedVersion:
    """Full tensors of one version, filled by one thread per trainer rank.

    Each thread owns the rank's dim-0 range of every tensor, so the threads never write to
    the same element. The model is not touched: a failure costs nothing but these bytes.
    """

    def __init__(
        self, manifest: WeightManifest, links: tuple[Link, ...], open_link: OpenLink
    ) -> None:
        """Start receiving.

        Raises:
            ValueError: the links do not match the manifest's ranks.
        """
        if len(links) != manifest.world_size:
            raise ValueError(f"{len(links)} links for {manifest.world_size} trainer ranks")
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
        # Edge of the thread: whatever happened becomes the replica's vote.
        except Exception as error:  # noqa: BLE001
            with self._lock:
                self._error = self._error or f"trainer rank {link.trainer_rank}: {error}"
            return
        with self._lock:
            self._waiting_for.discard(link.trainer_rank)
            if not self._waiting_for:
                self.seconds = time.monotonic() - self._started

    def _receive_bucket(self, link: WeightLink, rank: int, bucket: int) -> None:
        payload = link.receive_bucket(
            version=self.manifest.version,
            bucket=bucket,
            nbytes=self.manifest.bucket_bytes(rank, bucket),
        )
        digest = hashlib.sha256(payload.numpy().data).hexdigest()
        if digest != self.manifest.digests[rank][bucket]:
            raise ValueError(f"digest of bucket {bucket} is not the manifest's")
        self._place(payload, rank, bucket)

    def _place(self, payload: torch.Tensor, rank: int, bucket: int) -> None:
        at = 0
        for index in range(*self.manifest.buckets[bucket]):
            tensor, spec = self._tensors[index], self.manifest.tensors[index]
            numel = spec.shard_numels[rank]
            nbytes = numel * spec.dtype.itemsize
            first = self._offsets[index][rank]
            # Bytes to bytes: a shard may start at an offset that its type is not aligned to.
            target = tensor[first : first + numel].view(torch.uint8)
            target.copy_(payload[at : at + nbytes])
            at += nbytes


def _empty(spec: TensorSpec) -> torch.Tensor:
    return torch.empty(math.prod(spec.shape), dtype=getattr(torch, spec.dtype.value))


def _offsets(spec: TensorSpec) -> list[int]:
    """First element of each rank's shard in the flattened full tensor."""
    return [sum(spec.shard_numels[:rank]) for rank in range(len(spec.shard_numels))]
