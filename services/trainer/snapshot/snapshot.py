"""The exported tensors of a policy version: their layout, and copies in host memory."""

import math
import threading
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain

import torch
import torch.distributed as dist
from cachetools import FIFOCache
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard

from services.protocol.weights.place import Place
from services.protocol.weights.weights import Adapter, Dtype, TensorSpec, plan_buckets
from services.trainer.collectives import all_gather
from services.trainer.config import LoraConfig, TrainerConfig
from services.trainer.experts.names import CheckpointNames, Part
from services.trainer.heartbeat import HEARTBEAT
from services.trainer.model.lora import ADAPTER_PARAMETERS, PEFT_PREFIX, LoraLinear, lora_layers
from services.trainer.model.model import Policy
from services.transport.bucket import Encoded, changes, digest, whole
from services.transport.shared_memory import BufferPool

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
                    new, itemsize = snapshot.buckets[bucket], snapshot.itemsize
                    found = changes(new, old.buckets[bucket], base, itemsize)
                self._encoded = {k: v for k, v in self._encoded.items() if k[0] >= key[0]}
                self._encoded[key] = found
            return self._encoded[key] or snapshot.whole(bucket)


class SnapshotSource:
    """Implements `services.transport.bucket.BucketSource` with one snapshot of a store."""

    def __init__(self, snapshot: Snapshot, store: SnapshotStore) -> None:
        self._snapshot, self._store = snapshot, store
        self.version, self.bucket_count = snapshot.version, len(snapshot.buckets)

    def encoded(self, bucket: int, base: int | None) -> Encoded:
        """See `BucketSource`."""
        if base is None:
            return self._snapshot.whole(bucket)
        return self._store.changes(self._snapshot, bucket, base)


class WeightExporter:
    """Copies the weights of this rank into host memory, from where links send them. Collective.

    Attributes:
        snapshots: the versions that can be sent.
        layout: of every version.
        adapter: set if only the tensors of an adapter are exported.
    """

    def __init__(self, policy: Policy, config: TrainerConfig, base: str | None) -> None:
        """`base` is the digest of the weights that an adapter is for."""
        self._lora, self._senders, self._pool = config.lora, config.shards, BufferPool()
        self._dtype: torch.dtype = getattr(torch, config.dtype)
        self.snapshots = SnapshotStore()
        self.adapter: Adapter | None = None
        if config.lora is not None and config.lora.push == "adapter" and base is not None:
            self.adapter = Adapter(rank=config.lora.rank, alpha=config.lora.alpha, base=base)
        tensors = exported_tensors(policy, config.lora)
        numels = all_gather([one.parameter.to_local().numel() for one in tensors])
        names = CheckpointNames(policy.model_type)
        specs = tensor_specs(
            [one.divided for one in tensors], numels[: config.shards], names, Dtype(config.dtype)
        )
        self.layout = WireLayout(specs, config.bucket_bytes)

    def snapshot(self, policy: Policy, version: int) -> tuple[str, ...]:
        """Copy the weights as they are now; returns the digest of each bucket.

        Ranks beyond the first copy of the model send nothing and have no digests.
        """
        policy.reshard_all()
        if dist.get_rank() >= self._senders:
            return ()
        dtype = self._dtype
        shards = (one.shard() for one in exported_tensors(policy, self._lora))
        copied = []
        for shard in shards:
            copied.append(shard.reshape(-1).to("cpu", dtype))
            HEARTBEAT.mark()  # the whole of a large model takes longer than progress_timeout_s
        ends = list(accumulate((shard.numel() * dtype.itemsize for shard in copied), initial=0))
        buffer = self._pool.take(ends[-1])
        torch.cat(copied, out=buffer.bytes.view(dtype))
        ranges = [(ends[first], ends[last]) for first, last in self.layout.parameters]
        buckets = tuple(buffer.bytes[start:end] for start, end in ranges)
        snapshot = Snapshot(
            version=version,
            buckets=buckets,
            places=tuple(buffer.place(start) for start, _ in ranges),
            digests=tuple(map(_marked_digest, buckets)),
            itemsize=dtype.itemsize,
        )
        weakref.finalize(snapshot, self._pool.give, buffer)
        self.snapshots.put(snapshot)
        return snapshot.digests


def _marked_digest(bucket: torch.Tensor) -> str:
    HEARTBEAT.mark()
    return digest([bucket])


@dataclass(frozen=True, kw_only=True)
class ExportedTensor:
    """One tensor of a version.

    Attributes:
        name: in the checkpoint, or in the PEFT format.
        parameter: has its shape, and lies on the ranks as it does.
        merged: the layer whose difference is to be added; None: nothing is.
    """

    name: str
    parameter: DTensor
    merged: LoraLinear | None = None

    @property
    def divided(self) -> "Divided":
        """As what the ranks divide it."""
        shape = tuple(self.parameter.shape)
        (dim,) = (one.dim for one in self.parameter.placements if isinstance(one, Shard))
        return Divided(name=self.name, shape=shape, blocks=math.prod(shape[:dim]))

    def shard(self) -> Tensor:
        """This rank's part, on its device. Collective where a difference is added."""
        if self.merged is not None:
            return self.merged.merged_shard()
        return self.parameter.to_local().detach()


def exported_tensors(policy: Policy, config: LoraConfig | None) -> list[ExportedTensor]:
    """The tensors of a version in wire order: the adapter's, or the model's with it merged."""
    layers = dict(lora_layers(policy.causal))
    if config is not None and config.push == "adapter":
        return [
            ExportedTensor(
                name=f"{PEFT_PREFIX}{name}.{kind}.weight", parameter=getattr(layer, kind)
            )
            for name, layer in layers.items()
            for kind in ADAPTER_PARAMETERS
        ]
    adapted = {f"{name}.weight": layer for name, layer in layers.items()}
    return [
        ExportedTensor(name=name, parameter=parameter, merged=adapted.get(name))
        for name, parameter in policy.checkpoint_parameters()
    ]


@dataclass(frozen=True, kw_only=True)
class Divided:
    """A parameter that ranks divide.

    Attributes:
        name: in the model.
        shape: of the whole.
        blocks: equally large parts, one after another, of each of which the ranks hold consecutive
            parts: as many as experts where ranks hold rows of each.
    """

    name: str
    shape: tuple[int, ...]
    blocks: int = 1


def tensor_specs(
    parameters: Sequence[Divided],
    numels: Sequence[Sequence[int]],
    names: CheckpointNames,
    dtype: Dtype,
) -> list[tuple[TensorSpec, ...]]:
    """The checkpoint's tensors in each parameter.

    `numels[rank][i]` elements of parameter i are on that rank.
    """
    found = []
    for index, one in enumerate(parameters):
        parts = names.parts(one.name, one.shape)
        held = [rank[index] // one.blocks for rank in numels]
        each = len(parts) // one.blocks
        blocks = (parts[first : first + each] for first in range(0, len(parts), each))
        found.append(tuple(chain.from_iterable(_specs(block, held, dtype) for block in blocks)))
    return found


def _specs(parts: Sequence[Part], held: Sequence[int], dtype: Dtype) -> Iterator[TensorSpec]:
    """Of tensors that lie one after another, of which ranks hold so many consecutive elements."""
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


class WireLayout:
    """The parameters, and the tensors of the checkpoint, in each bucket.

    A bucket holds whole parameters, each with all tensors of the checkpoint that it contains.

    Attributes:
        tensors: every tensor of the checkpoint, in the order in which they travel.
        buckets: half-open ranges of indexes into `tensors`.
        parameters: the same buckets as ranges of indexes into the model's parameters.
    """

    def __init__(self, held: Sequence[tuple[TensorSpec, ...]], target_bytes: int) -> None:
        """`held[i]` are the tensors in parameter i."""
        self.tensors = tuple(chain.from_iterable(held))
        firsts = [0, *accumulate(len(specs) for specs in held)]
        of_first = {first: index for index, first in enumerate(firsts)}
        # Only a bucket that ends where a parameter ends can be copied from parameters.
        ends = [last for _, last in plan_buckets(self.tensors, target_bytes) if last in of_first]
        starts = [0, *ends[:-1]]
        self.buckets = tuple(zip(starts, ends, strict=True))
        self.parameters = tuple((of_first[first], of_first[last]) for first, last in self.buckets)
