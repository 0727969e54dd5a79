"""The weights of a rank on their way into host memory, and their digests."""

import os
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

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
from services.trainer.snapshot.node_block import NodeBlocks
from services.trainer.snapshot.snapshot import Snapshot, SnapshotStore
from services.transport.bucket import digest
from services.transport.version_bytes import VersionBytes, block_bytes

HASH_THREADS = 4
"""At 2 to 4 GB/s each, by the processor."""


class WeightExporter:
    """Copies the weights of this rank into host memory, from where links send them. Collective.

    Attributes:
        snapshots: the versions that can be sent.
        layout: of every version.
        adapter: set if only the tensors of an adapter are exported.
    """

    def __init__(self, policy: Policy, config: TrainerConfig, base: str | None) -> None:
        """`base` is the digest of the weights that an adapter is for."""
        self._lora = config.lora
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
        self._blocks = NodeBlocks(block_bytes(self.layout), config.shards)
        self._unit = changed_unit(self.layout.tensors)
        self._copies = CopyStream(on_device=config.device == "cuda" and config.offload != "all")
        self._hashing = ThreadPoolExecutor(
            min(HASH_THREADS, os.cpu_count() or 1), "hash", _name_hashing_thread
        )

    def snapshot(self, policy: Policy, version: int) -> tuple[str, ...]:
        """Copy the weights as they are now; returns the digest of each bucket.

        Ranks beyond the first copy of the model send nothing and have no digests.
        """
        policy.reshard_all()
        block = self._blocks.take()
        if block is None:
            return ()
        rank, written = dist.get_rank(), VersionBytes(self.layout, block.buffer.bytes)
        tensors, hashed = exported_tensors(policy, self._lora), []
        buckets = tuple(
            tuple(written.shards(rank, bucket)) for bucket in range(len(self.layout.buckets))
        )
        with self._copies.reading(block.buffer, pins=block.is_filled):
            for (first, last), bucket in zip(self.layout.parameters, buckets, strict=True):
                for index in range(first, last):
                    shard = tensors[index].shard()
                    parts = [written.shard(rank, one) for one in range(*self.layout.held[index])]
                    if shard.dtype != torch.uint8:
                        parts = [part.view(self._dtype) for part in parts]
                    self._copies.copy(shard, parts)
                    HEARTBEAT.mark()  # a large model takes longer than progress_timeout_s
                hashed.append(self._hashing.submit(_digest, self._copies.copied(), bucket))
        snapshot = Snapshot(
            version=version,
            buckets=buckets,
            digests=tuple(map(_marked, hashed)),
            itemsize=self._unit,
            place=block.place,
        )
        weakref.finalize(snapshot, self._blocks.give, block)
        self.snapshots.put(snapshot)
        return snapshot.digests

    def let_weights_change(self) -> None:
        """Call before each change of the weights; see `CopyStream`."""
        self._copies.let_weights_change()


def _digest(copied: Callable[[], object], bucket: Sequence[Tensor]) -> str:
    copied()
    return digest(bucket)


def _marked(hashed: "Future[str]") -> str:
    found = hashed.result()
    HEARTBEAT.mark()
    return found


def _name_hashing_thread() -> None:
    """By the torch thread's name, which it inherits, the heartbeat would count its CPU time."""
    name_thread("hash")
