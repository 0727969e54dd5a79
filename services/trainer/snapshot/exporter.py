"""The weights of a rank on their way into host memory, and their digests."""

import os
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import accumulate

import torch
import torch.distributed as dist
from torch import Tensor

from services.protocol.weights.weights import Adapter, Dtype, changed_unit
from services.trainer.collectives import all_gather
from services.trainer.config import TrainerConfig
from services.trainer.experts.names import CheckpointNames
from services.trainer.heartbeat import HEARTBEAT, name_thread
from services.trainer.model.model import Policy
from services.trainer.snapshot.copy_stream import CopyStream
from services.trainer.snapshot.layout import WireLayout, exported_tensors, tensor_specs
from services.trainer.snapshot.snapshot import Snapshot, SnapshotStore
from services.transport.bucket import digest
from services.transport.shared_memory import BufferPool

HASH_THREADS = 4
"""At about 2 GB/s each, they keep up with a GPU that copies to host memory."""


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
        divided, dtype = [one.divided for one in tensors], Dtype(config.dtype)
        numels = all_gather([one.local.numel() for one in tensors])
        names = CheckpointNames(policy.model_type)
        specs = tensor_specs(divided, numels[: config.shards], names, dtype)
        self.layout = WireLayout(specs, config.bucket_bytes)
        self._unit = changed_unit(self.layout.tensors)
        sizes = [(one.buffer or dtype).itemsize for one in divided]
        own = zip(numels[dist.get_rank()], sizes, strict=True)
        self._ends = list(accumulate((count * size for count, size in own), initial=0))
        self._copies = CopyStream(on_device=config.device == "cuda" and config.offload != "all")
        self._hashing = ThreadPoolExecutor(
            min(HASH_THREADS, os.cpu_count() or 1), "hash", _name_hashing_thread
        )

    def snapshot(self, policy: Policy, version: int) -> tuple[str, ...]:
        """Copy the weights as they are now; returns the digest of each bucket.

        Ranks beyond the first copy of the model send nothing and have no digests.
        """
        policy.reshard_all()
        if dist.get_rank() >= self._senders:
            return ()
        buffer, ends = self._pool.take(self._ends[-1]), self._ends
        ranges = [(ends[first], ends[last]) for first, last in self.layout.parameters]
        buckets = tuple(buffer.bytes[start:end] for start, end in ranges)
        tensors, hashed = exported_tensors(policy, self._lora), []
        with self._copies.reading(buffer):
            for (first, last), bucket in zip(self.layout.parameters, buckets, strict=True):
                for index in range(first, last):
                    shard = tensors[index].shard()
                    target = buffer.bytes[ends[index] : ends[index + 1]]
                    if shard.dtype != torch.uint8:
                        target = target.view(self._dtype)
                    self._copies.copy(shard, target)
                    HEARTBEAT.mark()  # a large model takes longer than progress_timeout_s
                hashed.append(self._hashing.submit(_digest, self._copies.copied(), bucket))
        snapshot = Snapshot(
            version=version,
            buckets=buckets,
            places=tuple(buffer.place(start) for start, _ in ranges),
            digests=tuple(map(_marked, hashed)),
            itemsize=self._unit,
        )
        weakref.finalize(snapshot, self._pool.give, buffer)
        self.snapshots.put(snapshot)
        return snapshot.digests

    def let_weights_change(self) -> None:
        """Call before each change of the weights; see `CopyStream`."""
        self._copies.let_weights_change()


def _digest(copied: Callable[[], object], bucket: Tensor) -> str:
    copied()
    return digest([bucket])


def _marked(hashed: "Future[str]") -> str:
    found = hashed.result()
    HEARTBEAT.mark()
    return found


def _name_hashing_thread() -> None:
    """By the torch thread's name, which it inherits, the heartbeat would count its CPU time."""
    name_thread("hash")
