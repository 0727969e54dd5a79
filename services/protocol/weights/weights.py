"""The contents of a policy version, and the layout of its bytes on a link.

A version is a list of tensors in checkpoint names and layout. Neighbouring tensors form
buckets; every trainer rank holds a contiguous dim-0 shard of each tensor and sends, bucket
by bucket, its shards of that bucket back to back. The full tensor is the concatenation of
the ranks' shards. Parameters have one element type; a buffer keeps its own.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain

from blake3 import blake3

CanaryLogprobs = tuple[tuple[float, ...], ...]
"""Scores of the canary's sequences: `[i][j]` belongs to token `j + 1` of sequence i, in nats,
at temperature 1."""


class Dtype(StrEnum):
    """Element types that travel, by torch's names."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"

    @property
    def itemsize(self) -> int:
        """Bytes per element."""
        return 4 if self is Dtype.FLOAT32 else 2


@dataclass(frozen=True, kw_only=True)
class TensorSpec:
    """One parameter or buffer in checkpoint form.

    Attributes:
        name: checkpoint name.
        dtype: element type on the wire.
        shape: the full tensor's shape.
        shard_numels: elements that each trainer rank holds, in rank order; the sum is the
            number of elements of `shape`. A rank may hold 0.
        is_buffer: it is no parameter, and nobody trains it, as the bias by which DeepSeek-V3
            chooses experts.
    """

    name: str
    dtype: Dtype
    shape: tuple[int, ...]
    shard_numels: tuple[int, ...]
    is_buffer: bool = False

    def __post_init__(self) -> None:
        """Refuse shards that do not add up."""
        if sum(self.shard_numels) != math.prod(self.shape):
            raise ValueError(f"{self.name}: shards {self.shard_numels} do not make {self.shape}")


@dataclass(frozen=True, kw_only=True)
class Adapter:
    """The scaling and base model of a LoRA adapter.

    A linear layer with weight W computes `(W + alpha / rank * B A) x`, where A and B travel
    under the names of the PEFT format.

    Attributes:
        rank: rows of every A and columns of every B.
        alpha: see above.
        base: digest of the checkpoint that W comes from; receivers have it already.
    """

    rank: int
    alpha: float
    base: str


@dataclass(frozen=True, kw_only=True)
class WeightManifest:
    """Everything a receiver needs to take and check one policy version.

    Attributes:
        version: policy version.
        train_step: train step whose result it is.
        tensors: in the order in which they travel.
        buckets: half-open ranges of indexes into `tensors`.
        digests: blake3 hex of each rank's bytes of each bucket, `digests[rank][bucket]`.
        canary: token sequences that trainer and replicas score under these weights, to prove
            the delivery; empty: nothing is asked.
        trace: W3C `traceparent` of the publisher's span, empty without one.
        adapter: set when the tensors are a LoRA adapter's; None: they are all of the model's.
        model: the checkpoint that training began from, as the trainer's settings name it;
            empty: not known.
    """

    version: int
    train_step: int
    tensors: tuple[TensorSpec, ...]
    buckets: tuple[tuple[int, int], ...]
    digests: tuple[tuple[str, ...], ...]
    canary: tuple[tuple[int, ...], ...] = ()
    adapter: Adapter | None = None
    model: str = ""
    trace: str = ""

    @property
    def world_size(self) -> int:
        """Number of trainer ranks."""
        return len(self.digests)

    @property
    def digest(self) -> str:
        """blake3 hex over `digests`, rank by rank; equal means equal bytes for equal tensors."""
        return blake3("".join(chain.from_iterable(self.digests)).encode()).hexdigest()

    @property
    def total_bytes(self) -> int:
        """Bytes of the whole version."""
        return sum(math.prod(spec.shape) * spec.dtype.itemsize for spec in self.tensors)

    def bucket_bytes(self, rank: int, bucket: int) -> int:
        """Bytes that `rank` sends for `bucket`."""
        first, last = self.buckets[bucket]
        return sum(s.shard_numels[rank] * s.dtype.itemsize for s in self.tensors[first:last])


def plan_buckets(tensors: tuple[TensorSpec, ...], target_bytes: int) -> tuple[tuple[int, int], ...]:
    """Split tensors into buckets of about `target_bytes` without splitting a module.

    A module is the tensors that share everything before the last dot of their names; a
    receiver may keep views of a module's tensors, so a module never crosses a bucket.
    """
    buckets: list[tuple[int, int]] = []
    start, size, module = 0, 0, None
    for index, spec in enumerate(tensors):
        owner = spec.name.rpartition(".")[0]
        if size >= target_bytes and owner != module:
            buckets.append((start, index))
            start, size = index, 0
        size += math.prod(spec.shape) * spec.dtype.itemsize
        module = owner
    if start < len(tensors):
        buckets.append((start, len(tensors)))
    return tuple(buckets)


def changed_unit(tensors: Sequence[TensorSpec]) -> int:
    """Bytes of the units in which both ends of a link count changes: one size for a whole version,
    the smallest of its element types, which divides the larger one."""
    return min((spec.dtype.itemsize for spec in tensors), default=2)


def first_difference(manifest: WeightManifest, served: WeightManifest) -> str | None:
    """The first difference between `manifest` and the `served` one of an engine, in words.

    Names, shapes and element types must be the same, and what an adapter is added to; the
    order, the buckets and how many ranks hold them may differ.
    """
    if manifest.adapter != served.adapter:
        return f"they are for {manifest.adapter}, but {served.adapter} is served"
    offered = {spec.name: (spec.shape, spec.dtype) for spec in manifest.tensors}
    wanted = {spec.name: (spec.shape, spec.dtype) for spec in served.tensors}
    for name in sorted(offered.keys() | wanted.keys()):
        if name not in wanted:
            return f"{name} is not in the model that is served"
        if name not in offered:
            return f"{name} is missing"
        if offered[name] != wanted[name]:
            (shape, dtype), (has_shape, has_dtype) = offered[name], wanted[name]
            return f"{name} is {list(shape)} {dtype}, but {list(has_shape)} {has_dtype} is served"
    return None
