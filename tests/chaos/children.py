"""What runs in the processes: bus, replica, router, trainer rank; each the real class."""

import asyncio
import os
import signal
import socket
import string
import threading
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import ray
import torch
import torch.distributed as dist
import uvicorn

from services.protocol.placement import Node
from services.rollout_server import replica as replica_module
from services.rollout_server.config import RolloutServerConfig
from services.rollout_server.engine.engine_environment import engine_sockets
from services.rollout_server.replica import RolloutReplica
from services.router.config import RouterConfig
from services.router.http_app import build_http
from services.trainer.config import TrainerConfig
from services.trainer.rank import learner
from services.trainer.rank import rank as rank_module
from services.trainer.rank.fault_injector import FaultInjector, SendFault
from services.transport import links, peer_sender
from services.weight_bus.actor import WeightBusActor
from services.weight_bus.config import WeightBusConfig
from services.weight_bus.relay import relay as relay_module
from services.weight_bus.relay.relay import Relay
from tests.chaos.calls import BusOverSocket, serve
from tests.chaos.faults import FAULTS, HOLD_S, FaultyLink

HOST = "127.0.0.1"
ELSEWHERE = "another node"
"""The memory domain of every second replica."""


def run_bus(path: str, config: WeightBusConfig) -> None:
    ray.util.get_node_ip_address = lambda: HOST  # type: ignore[assignment, misc]
    asyncio.run(serve(WeightBusActor(config), path))


def run_replica(replica_id: str, bus: str, config: RolloutServerConfig) -> None:
    asyncio.run(_replica(replica_id, BusOverSocket(bus), config))


async def _replica(replica_id: str, bus: Any, config: RolloutServerConfig) -> None:
    if int(replica_id.lstrip(string.ascii_letters)) % 2:
        # As on another node: every second one is sent bytes over TCP.
        replica_module.memory_domain = lambda: ELSEWHERE  # type: ignore[attr-defined]
    replica = RolloutReplica(
        config, replica_id=replica_id, node=Node(ip=HOST), bus=bus, on_end=lambda: os._exit(1)
    )
    with engine_sockets():
        await replica.start()
    sent_away = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, sent_away.set)
    await sent_away.wait()
    await replica.stop()


def run_relay(relay_id: str, bus: str, domain: str, path: str) -> None:
    """`domain`: of the replicas that map what it holds; `path`: where it takes a test's orders."""
    injector = FaultInjector(FaultyLink)
    mock.patch.object(peer_sender, "make_link", injector.make_link).start()
    mock.patch.object(relay_module, "memory_domain", return_value=domain).start()
    relay = Relay(BusOverSocket(bus), relay_id=relay_id, node_id=relay_id, host=HOST)
    asyncio.run(_relay(relay, RelayFaults(injector), path))


async def _relay(relay: Relay, faults: "RelayFaults", path: str) -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(serve(faults, path))
        tasks.create_task(relay.run())


def run_router(listener: socket.socket, bus: str, table: str, config: RouterConfig) -> None:
    app = build_http(config, BusOverSocket(bus), BusOverSocket(table))
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listener])


def run_rank(
    path: str, bus: str, weights: str, config: TrainerConfig, group: str, rank: int
) -> None:
    ray.util.get_node_ip_address = lambda: HOST  # type: ignore[assignment, misc]
    mock.patch.object(rank_module, "bus_peer", partial(BusOverSocket, bus)).start()
    mock.patch.object(
        links, "make_link", lambda link, address, device: FaultyLink(link, address)
    ).start()
    mock.patch.object(learner, "Learner", partial(RecordingLearner, Path(weights))).start()
    asyncio.run(_rank(path, config, group, rank))


async def _rank(path: str, config: TrainerConfig, group: str, rank: int) -> None:
    await serve(FaultyRank(config, group, rank), path)


class Sender:
    """Whose sends a test can stop in the middle."""

    async def hold(self, receiver_ids: list[str], bucket: int) -> None:
        FAULTS.hold(receiver_ids, bucket)

    async def wait_until_held(self, receiver_ids: list[str]) -> None:
        await asyncio.to_thread(FAULTS.wait_until_held, receiver_ids)

    async def release(self) -> None:
        FAULTS.release()


class RelayFaults(Sender):
    """What a test tells a relay's process."""

    def __init__(self, injector: FaultInjector) -> None:
        self._injector = injector

    async def inject_fault(self, fault: SendFault, receiver_id: str, bucket: int) -> None:
        self._injector.inject(fault, receiver_id, bucket)

    async def waiting_faults(self) -> int:
        """Faults that no send has met."""
        return len(self._injector._next)


class FaultyRank(Sender, rank_module.TrainerRank):
    """A rank that also takes orders from the test."""

    _learner: "RecordingLearner"  # type: ignore[assignment]

    async def waiting_faults(self) -> int:
        """See `RelayFaults`."""
        assert self._fault_injector is not None
        return len(self._fault_injector._next)

    async def hold_step(self) -> None:
        """Begin the next train step and go no further."""
        self._learner.stepping.clear()
        self._learner.go.clear()

    async def wait_until_stepping(self) -> None:
        assert await asyncio.to_thread(self._learner.stepping.wait, HOLD_S)

    async def hold_save(self) -> None:
        """Have the thread that writes checkpoints wait for good."""
        writer = self._learner._checkpoints
        writer._thread.submit(threading.Event().wait, HOLD_S)


class RecordingLearner(learner.Learner):
    """Also leaves every version's parameters, gathered from all ranks, for the judge."""

    def __init__(self, folder: Path, config: TrainerConfig) -> None:
        self._folder = folder
        self.stepping, self.go = threading.Event(), threading.Event()
        self.go.set()
        super().__init__(config)

    def train(self, *args: Any) -> Any:
        self.stepping.set()
        assert self.go.wait(HOLD_S)
        return super().train(*args)

    def snapshot(self, version: int) -> Any:
        taken = super().snapshot(version)
        named = self._policy.checkpoint_parameters()
        full = {name: one.full_tensor().detach().clone() for name, one in named}
        if dist.get_rank() == 0:
            torch.save(full, self._folder / f"{version}.new")
            (self._folder / f"{version}.new").rename(self._folder / f"{version}.pt")
        return taken
