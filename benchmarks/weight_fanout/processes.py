"""The processes of one fan-out: bus, trainer ranks, and a relay and a replica on each node.

Each has the network of its machine. Bus, relay, and the links of all are those that are deployed.
A trainer rank sends random bytes instead of a model's, and a replica has no engine: it maps the
version where its node's relay holds it, and checks every digest.
"""

import asyncio
import os
import resource
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any
from unittest import mock

import torch

from services.bus_orders import follow_orders, report_end
from services.protocol.weights.hello import ReplicaHello, TrainerHello
from services.protocol.weights.weight_bus import CommitWeights, Order, Phase, Report, StageWeights
from services.protocol.weights.weights import Dtype, TensorSpec, WeightManifest, plan_buckets
from services.trainer.snapshot.bus_member import BusMember
from services.trainer.snapshot.snapshot import Snapshot, SnapshotStore
from services.transport.bucket import digest
from services.transport.network_interfaces import network_interfaces
from services.transport.receiver import VersionReceiver
from services.transport.shared_memory import Mappings, SharedBuffer
from services.transport.version_bytes import VersionBytes, block_bytes
from services.weight_bus.bus import Bus
from services.weight_bus.config import WeightBusConfig
from services.weight_bus.node_relays import NO_RELAYS, RelayStarter
from services.weight_bus.relay import relay as relay_module
from services.weight_bus.rendezvous import Rendezvous
from tests.chaos.calls import BusOverSocket, serve
from tests.operations.network import Machine

RANKS = 2
TENSOR_BYTES = 1 << 18
_COLUMNS = 256
_POLL_S = 2.0


def tensors_of(nbytes: int) -> tuple[TensorSpec, ...]:
    """So many bytes as equal tensors, of each of which every rank holds an equal part."""
    rows = TENSOR_BYTES // _COLUMNS // Dtype.BFLOAT16.itemsize
    each = rows * _COLUMNS // RANKS
    return tuple(
        TensorSpec(
            name=f"layers.{index}.weight",
            dtype=Dtype.BFLOAT16,
            shape=(rows, _COLUMNS),
            shard_numels=(each,) * RANKS,
        )
        for index in range(nbytes // TENSOR_BYTES)
    )


def manifest_of(
    version: int, tensors: tuple[TensorSpec, ...], bucket_bytes: int, digests: Any
) -> WeightManifest:
    """What the lead of the ranks publishes."""
    return WeightManifest(
        version=version,
        train_step=version,
        tensors=tensors,
        buckets=plan_buckets(tensors, bucket_bytes),
        digests=digests,
    )


def run_bus(machine: Machine, path: str, config: WeightBusConfig) -> None:
    """Until the process is killed."""
    with machine.network():
        asyncio.run(_bus(machine, path, config))


async def _bus(machine: Machine, path: str, config: WeightBusConfig) -> None:
    store = Rendezvous(machine.address, timeout_s=config.link_timeout_s)
    relays = RelayStarter(start=_there, stop=_there) if config.relays else NO_RELAYS
    bus = Bus(config, store=store.address, relays=relays)
    bus.start()
    await serve(bus, path)


async def _there(node_id: str) -> None:
    """The world starts and ends the relays itself."""


class Rank:
    """A trainer rank that sends; it takes orders from the benchmark as well."""

    def __init__(self, rank: int, store: SnapshotStore) -> None:
        self._rank, self._store = rank, store

    async def snapshot(self, version: int, buckets: tuple[int, ...]) -> tuple[str, ...]:
        """Make a version of random bytes, in buckets of these sizes; returns their digests."""
        draw = torch.Generator().manual_seed(version * RANKS + self._rank)
        buffer, ends = SharedBuffer(sum(buckets)), [sum(buckets[:n]) for n in range(len(buckets))]
        buffer.bytes.random_(0, 256, generator=draw)
        parts = tuple(
            (buffer.bytes[start : start + size],) for start, size in zip(ends, buckets, strict=True)
        )
        snapshot = Snapshot(
            version=version,
            buckets=parts,
            digests=tuple(map(digest, parts)),
            itemsize=Dtype.BFLOAT16.itemsize,
        )
        self._store.put(snapshot)
        return snapshot.digests


def run_rank(machine: Machine, path: str, bus: str, rank: int, group: str) -> None:
    """Until the process is killed; ranks that start together are a group of their own."""
    with machine.network():
        asyncio.run(_rank(machine, path, bus, rank, group))


async def _rank(machine: Machine, path: str, bus: str, rank: int, group: str) -> None:
    store = SnapshotStore()
    hello = TrainerHello(
        member_id=f"{group}/{rank}",
        group=group,
        rank=rank,
        world_size=RANKS,
        interfaces=network_interfaces(),
    )
    member = BusMember(hello, BusOverSocket(bus), store, machine.address)
    await asyncio.gather(member.run(), serve(Rank(rank, store), path))


def run_relay(machine: Machine, bus: str) -> None:
    """Until the process is killed."""
    with machine.network(), _memory_of(machine):
        relay = relay_module.Relay(
            BusOverSocket(bus),
            relay_id=f"relay/{machine.name}",
            node_id=machine.name,
            host=machine.address,
        )
        asyncio.run(relay.run())


def _memory_of(machine: Machine) -> Any:
    """Within it a relay takes only replicas of its own machine to share its memory."""
    return mock.patch.object(relay_module, "memory_domain", return_value=machine.name)


def run_replica(machine: Machine, bus: str, name: str) -> None:
    """Until the process is killed."""
    with machine.network():
        asyncio.run(Replica(BusOverSocket(bus), name, machine).run())


class Replica:
    """A replica without an engine."""

    def __init__(self, bus: Any, name: str, machine: Machine) -> None:
        self._bus, self._id, self._machine = bus, name, machine
        self._receiver = VersionReceiver(machine.address)
        self._mappings = Mappings()
        self._committed: int | None = None
        self._work: set[asyncio.Task[Any]] = set()

    async def run(self) -> None:
        """Follow the bus until cancelled."""
        await follow_orders(
            self._bus,
            self._id,
            register=lambda: self._bus.register_replica(self._hello()),
            carry_out=self._carry_out,
            wait_s=_POLL_S,
        )

    def _hello(self) -> ReplicaHello:
        return ReplicaHello(
            replica_id=self._id,
            address=f"http://{self._machine.address}:1",
            committed_version=self._committed,
            model="model",
            max_model_len=1,
            pid=os.getpid(),
            commit_timeout_s=60.0,
            memory_domain=self._machine.name,
            interfaces=network_interfaces(),
        )

    async def _carry_out(self, order: Order) -> None:
        if isinstance(order, StageWeights):
            prefix = order.links[0].prefix if order.links else ""
            work = self._report(self._stage(order), Phase.STAGE, order.manifest.version, prefix)
        elif isinstance(order, CommitWeights):
            work = self._commit(order)
        else:
            return
        task = asyncio.create_task(work)
        self._work.add(task)
        task.add_done_callback(self._work.discard)

    async def _report(
        self, work: Coroutine[Any, Any, Any], phase: Phase, version: int, prefix: str = ""
    ) -> None:
        report = Report(
            member_id=self._id,
            replica_id=self._id,
            phase=phase,
            version=version,
            error=None,
            seconds=0.0,
        )
        await report_end(self._bus, replace(report, prefix=prefix), work)

    async def _commit(self, order: CommitWeights) -> None:
        self._committed = order.version
        # There is no engine: nothing to load, and nothing to read back.
        for phase in (Phase.COMMIT, Phase.CANARY):
            await self._report(asyncio.sleep(0), phase, order.version)

    async def _stage(self, order: StageWeights) -> None:
        if order.place is None:
            await self._receiver.receive(order)
            self._receiver.keep()
            return
        block = self._mappings.read(order.place, block_bytes(order.manifest))
        held = VersionBytes(order.manifest, block)
        await asyncio.to_thread(_check, held, order.manifest.digests)
        self._receiver.forget()


def _check(held: VersionBytes, expected_of_ranks: tuple[tuple[str, ...], ...]) -> None:
    for rank, digests in enumerate(expected_of_ranks):
        for bucket, expected in enumerate(digests):
            if digest(held.shards(rank, bucket)) != expected:
                raise ValueError(f"bucket {bucket} of rank {rank} is not the trainer's")


def let_open_files() -> None:
    """As many as the system allows: every process has sockets to all others of its machine."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
