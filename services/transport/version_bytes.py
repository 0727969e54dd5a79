"""The tensors of one version in one block of memory, as receivers lay them out."""

import math
from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from services.protocol.weights.weights import TensorSpec

_ALIGNED = 64
"""Bytes to which each tensor is aligned: a line of a processor's cache, more than any type asks."""


class Layout(Protocol):
    """What all versions of a model have in common; `WeightManifest` says what each is."""

    @property
    def tensors(self) -> tuple[TensorSpec, ...]:
        """See `WeightManifest`."""

    @property
    def buckets(self) -> tuple[tuple[int, int], ...]:
        """See `WeightManifest`."""


class VersionBytes:
    """Full tensors one after another, in the layout's order; each begins at an aligned byte.

    Attributes:
        layout: see `__init__`.
        block: see `__init__`.
    """

    def __init__(self, layout: Layout, block: Tensor) -> None:
        """Look at memory as a version's tensors.

        Args:
            layout: of the version.
            block: uint8, at least `block_bytes(layout)` of them.
        """
        self.layout, self.block = layout, block
        self._tensors: list[Tensor] = []
        start = 0
        for spec in layout.tensors:
            end = start + _nbytes(spec)
            self._tensors.append(block[start:end])
            start = _aligned(end)
        self._offsets = [_offsets(spec) for spec in layout.tensors]

    def named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Checkpoint names and full tensors, in the layout's order."""
        for spec, tensor in zip(self.layout.tensors, self._tensors, strict=True):
            yield spec.name, tensor.view(getattr(torch, spec.dtype.value)).view(spec.shape)

    def shards(self, rank: int, bucket: int) -> Iterator[Tensor]:
        """Where the bytes of trainer rank `rank` belong, uint8, in the order of the wire."""
        for index in range(*self.layout.buckets[bucket]):
            yield self.shard(rank, index)

    def shard(self, rank: int, index: int) -> Tensor:
        """Where the bytes of trainer rank `rank` of a tensor belong, uint8."""
        first, last = self._offsets[index][rank : rank + 2]
        return self._tensors[index][first:last]

    def shard_bytes(self, rank: int, bucket: int) -> Tensor:
        """What trainer rank `rank` sends of a bucket: uint8, fresh."""
        return torch.cat([torch.empty(0, dtype=torch.uint8), *self.shards(rank, bucket)])

    def write(self, payload: Tensor, rank: int, bucket: int) -> None:
        """Put what trainer rank `rank` sent of a bucket (uint8) in its place."""
        at = 0
        for target in self.shards(rank, bucket):
            target.copy_(payload[at : at + len(target)])
            at += len(target)


def block_bytes(layout: Layout) -> int:
    """Bytes of the block that a version takes."""
    return sum(_aligned(_nbytes(spec)) for spec in layout.tensors)


def _nbytes(spec: TensorSpec) -> int:
    return math.prod(spec.shape) * spec.dtype.itemsize


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNED) * _ALIGNED


def _offsets(spec: TensorSpec) -> list[int]:
    """Bytes of the tensor before each rank's shard, and all of them."""
    counted = [sum(spec.shard_numels[:rank]) for rank in range(len(spec.shard_numels) + 1)]
    return [numel * spec.dtype.itemsize for numel in counted]
