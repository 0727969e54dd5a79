"""Trainer ranks that speak the real wire format, and do wrong where they are told to."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta

import pytest
import torch
from torch.distributed import (  # type: ignore[attr-defined]
    BroadcastOptions,
    PrefixStore,
    ProcessGroupGloo,
    TCPStore,
)

from services.protocol.weights.weight_bus import Link, StageWeights
from services.protocol.weights.weights import (
    Adapter,
    Dtype,
    TensorSpec,
    WeightManifest,
    plan_buckets,
)
from services.trainer.snapshot.snapshot import SnapshotStore
from services.transport.bucket import MAGIC, NO_BASE, Header, Kind, digest
from services.transport.links import make_link

HOST = "127.0.0.1"
LINK_TIMEOUT_S = 120.0


@dataclass
class Fault:
    """What a sender does wrong."""

    corrupt_bucket: int | None = None
    announce_version: int | None = None
    die_before_bucket: int | None = None


@dataclass
class Sender:
    """Trainer ranks as threads: shards of a state dict over real Gloo links."""

    store: TCPStore
    world_size: int = 2
    threads: list[threading.Thread] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)
    groups: dict[str, ProcessGroupGloo] = field(default_factory=dict)

    def order(
        self,
        tensors: dict[str, torch.Tensor],
        version: int,
        epoch: str,
        target_bytes: int = 16384,
        adapter: Adapter | None = None,
        *,
        stripes: int = 1,
    ) -> tuple[StageWeights, list[list[torch.Tensor]]]:
        """The order a bus would give, and each rank's payload per bucket."""
        specs, shards = [], []
        for name, tensor in tensors.items():
            pieces = _shards(tensor, self.world_size)
            shards.append(pieces)
            specs.append(
                TensorSpec(
                    name=name,
                    dtype=Dtype(str(tensor.dtype).removeprefix("torch.")),
                    shape=tuple(tensor.shape),
                    shard_numels=tuple(piece.numel() for piece in pieces),
                )
            )
        buckets = plan_buckets(tuple(specs), target_bytes)
        payloads = [
            [_bytes([pieces[rank] for pieces in shards[first:last]]) for first, last in buckets]
            for rank in range(self.world_size)
        ]
        manifest = WeightManifest(
            version=version,
            train_step=version,
            tensors=tuple(specs),
            buckets=buckets,
            digests=tuple(tuple(digest([p]) for p in rank) for rank in payloads),
            adapter=adapter,
        )
        links = tuple(
            replace(self.link(rank, f"{epoch}.{stripe}"), stripe=stripe, stripes=stripes)
            for rank in range(self.world_size)
            for stripe in range(stripes)
        )
        return StageWeights(manifest=manifest, links=links), payloads

    def link(self, rank: int, epoch: str) -> Link:
        return Link(
            replica_id="r0",
            trainer_rank=rank,
            store_host=HOST,
            store_port=self.store.port,
            prefix=f"{epoch}/t{rank}",
            timeout_s=LINK_TIMEOUT_S,
        )

    def send(
        self,
        order: StageWeights,
        payloads: list[list[torch.Tensor]],
        fault: Fault | None = None,
        before_bucket: Callable[[int], None] = lambda bucket: None,
    ) -> None:
        """Start one thread per rank; only rank 0 misbehaves."""
        for link in order.links:
            wrong = fault if fault and link.trainer_rank == 0 else Fault()
            thread = threading.Thread(
                target=self._run,
                args=(order, link, payloads[link.trainer_rank], wrong, before_bucket),
            )
            thread.start()
            self.threads.append(thread)

    def join(self) -> None:
        for thread in self.threads:
            thread.join(LINK_TIMEOUT_S * 2)
            assert not thread.is_alive()
        self.threads.clear()

    def _run(
        self,
        order: StageWeights,
        link: Link,
        payloads: list[torch.Tensor],
        fault: Fault,
        before_bucket: Callable[[int], None],
    ) -> None:
        try:
            self._send(order, link, payloads, fault, before_bucket)
        except RuntimeError as error:
            self.groups.pop(link.prefix, None)
            self.errors.append(error)

    def _send(
        self,
        order: StageWeights,
        link: Link,
        payloads: list[torch.Tensor],
        fault: Fault,
        before_bucket: Callable[[int], None],
    ) -> None:
        group = self.groups.get(link.prefix) or self._open(link)
        version = order.manifest.version
        if fault.announce_version is not None:
            version = fault.announce_version
        asked = torch.empty(3, dtype=torch.int64)
        _broadcast(group, asked, source=1)
        assert asked.tolist()[:2] == [MAGIC, order.manifest.version]
        self.asked.append(int(asked[2]))
        for bucket, payload in list(enumerate(payloads))[int(asked[2]) :: link.stripes]:
            before_bucket(bucket)
            if fault.die_before_bucket == bucket:
                self.groups.pop(link.prefix)
                return
            header = Header(kind=Kind.FULL, base=NO_BASE, size=payload.numel())
            _broadcast(group, header.pack(version, bucket))
            if payload.numel():
                wrong = payload.clone()
                if fault.corrupt_bucket == bucket:
                    wrong[0] ^= 1
                _broadcast(group, wrong)

    def _open(self, link: Link) -> ProcessGroupGloo:
        group = ProcessGroupGloo(
            PrefixStore(link.prefix, self.store),
            0,
            link.world_size,
            timedelta(seconds=link.timeout_s),
        )
        self.groups[link.prefix] = group
        return group


def send_snapshot(store: SnapshotStore, order: StageWeights, rank: int) -> int:
    """Carry out one rank's side of an order, with a link's real end; returns payload bytes."""
    source = store.source(order.manifest.version)
    assert source is not None
    link = make_link(order.links[rank], HOST)
    link.open()
    try:
        return link.send(source, order.base)
    finally:
        link.close()


def _broadcast(group: ProcessGroupGloo, tensor: torch.Tensor, source: int = 0) -> None:
    options = BroadcastOptions()
    options.rootRank = source
    options.rootTensor = 0
    group.broadcast([tensor], options).wait()  # type: ignore[attr-defined]


def _shards(tensor: torch.Tensor, world_size: int) -> list[torch.Tensor]:
    """Dim-0 chunks as FSDP2 makes them; a rank beyond the last chunk holds nothing."""
    chunks = list(tensor.detach().chunk(world_size))
    empty = tensor.detach()[:0]
    return [*chunks, *[empty] * (world_size - len(chunks))]


def _bytes(pieces: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([piece.reshape(-1).contiguous().view(torch.uint8) for piece in pieces])


@pytest.fixture
def sender() -> Iterator[Sender]:
    store = TCPStore(
        HOST, 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=LINK_TIMEOUT_S)
    )
    sender = Sender(store)
    yield sender
    sender.join()
    sender.groups.clear()
    for thread in threading.enumerate():  # or one in the middle of Gloo ends the process at exit
        if thread.name.startswith("weights "):
            thread.join(LINK_TIMEOUT_S)
            assert not thread.is_alive()
