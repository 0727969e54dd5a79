"""A bus, replicas and a trainer, each process of which can be killed, frozen and thawed."""

import asyncio
import itertools
import multiprocessing
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import torch

from services.protocol.errors import NotReady
from services.protocol.run.algorithm import AlgorithmConfig
from services.protocol.trainer import CheckpointReport, RunStart
from services.protocol.weights.weight_bus import Member, MemberTable
from services.rollout_server.config import RolloutServerConfig
from services.router.config import RouterConfig
from services.trainer.config import TrainerConfig
from services.trainer.lead.rank_group import RankGroup
from services.trainer.lead.service import TrainerService
from services.weight_bus.config import WeightBusConfig
from tests.chaos import calls
from tests.chaos.answers import Client
from tests.chaos.calls import BusOverSocket
from tests.chaos.entry import run
from tests.chaos.trainer import RankProcesses, batch

LINK_S = 20.0
"""Deadline of a link: the longest that a frozen process may delay another one."""

KILL_S = LINK_S / 2
"""Far below it, for what must happen at once; far above what it takes, for slow machines."""

READY_S = 300.0
"""Only what hangs takes as long, on machines that are busy with other things, too."""

REPLICAS = 2
TOOL_TOKENS = ("<tool_call>", "</tool_call>")
ENGINE = {
    "enable_auto_tool_choice": True,
    "tool_call_parser": "hermes",
    # A model of random weights would fill its answer with blanks.
    "structured_outputs_config": {"backend": "xgrammar", "disable_any_whitespace": True},
}
BUS = WeightBusConfig(
    lease_s=4.0,
    poll_s=1.0,
    heartbeat_timeout_s=4.0,
    dead_after_s=6.0,
    forget_after_s=12.0,
    link_timeout_s=LINK_S,
    # Tests start relays as processes of their own: the bus's need Ray.
    relays=False,
)
FORKS = multiprocessing.get_context("forkserver")


class Scene:
    """Everything that runs, and what a test does to it.

    Attributes:
        folder: of the sockets by which processes meet.
        ranks: the trainer's rank processes.
        replicas: every replica process that has not been killed or sent away, by replica id.
        relays: the process of each node's relay, by relay id; empty unless a test starts some.
        killed: replicas that a test has killed or sent away.
        client: has requests in flight on every replica.
        weights: where the parameters of every version are recorded.
    """

    client: Client

    def __init__(
        self, folder: str, model: Path, weights: Path, *, replicas: int = REPLICAS
    ) -> None:
        self.folder, self._model, self.weights = folder, model, weights
        self._wanted = replicas
        self._bus_path = f"{folder}/bus"
        self._bus_process: Any = None
        self.replicas: dict[str, Any] = {}
        self.relays: dict[str, Any] = {}
        self.killed: set[str] = set()
        self._sent_away: dict[str, Any] = {}
        self._numbers = itertools.count()
        self.bus = BusOverSocket(self._bus_path)
        self.ranks = RankProcesses(folder, self._bus_path, str(weights), self._start)
        config = TrainerConfig(
            model=str(model), bucket_mb=0.02, bus_timeout_s=READY_S, allow_fault_injection=True
        )
        self._trainer = TrainerService(config, self.bus, RankGroup.start)
        self._run = RunStart(
            run_id="chaos",
            checkpoint_dir=f"{folder}/checkpoints",
            algorithm=AlgorithmConfig(learning_rate=5e-3),
            temperature=1.0,
            seed=0,
        )
        self._processes: list[Any] = []

    async def open(self) -> None:
        """Start a bus, a trainer and replicas."""
        self.start_bus()
        for _ in range(self._wanted):
            self.start_replica()
        await self._trainer.open()

    async def close(self) -> None:
        """End every process."""
        await self._trainer.close()
        for process in self._living():
            for one in family(process.pid):
                with suppress(psutil.NoSuchProcess):
                    one.kill()
            process.join(timeout=READY_S)

    def start_bus(self) -> None:
        self._bus_process = self._start("run_bus", self._bus_path, BUS)

    def kill_bus(self) -> None:
        self._bus_process.kill()
        self._bus_process.join(timeout=READY_S)

    def start_replica(self, **config: Any) -> str:
        """Begin to start a replica; returns its id."""
        replica_id = f"r{next(self._numbers)}"
        engine = RolloutServerConfig(
            model=str(self._model),
            replicas=self._wanted,
            max_model_len=512,
            max_num_seqs=64,
            kv_cache_gb=0.02,
            keep_copy=True,
            engine_args=ENGINE,
            **config,
        )
        process = self._start("run_replica", replica_id, self._bus_path, engine)
        self.replicas[replica_id] = process
        return replica_id

    async def start_relay(self, domain: str) -> str:
        """A relay for the replicas of this memory domain, which the bus knows; returns its id."""
        relay_id = f"relay{next(self._numbers)}"
        path = self._relay_path(relay_id)
        self.relays[relay_id] = self._start("run_relay", relay_id, self._bus_path, domain, path)
        deadline = time.monotonic() + READY_S
        while not (await self.bus.next_orders(relay_id, 0, 0.0)).known:
            assert time.monotonic() < deadline, f"{relay_id} does not register"
            await asyncio.sleep(0.02)
        return relay_id

    async def tell_relay(self, relay_id: str, order: str, *args: Any) -> Any:
        """See `tests.chaos.children.RelayFaults`."""
        return await calls.call(self._relay_path(relay_id), order, *args)

    def _relay_path(self, relay_id: str) -> str:
        return f"{self.folder}/{relay_id}"

    def start_router(self, listener: socket.socket, table: str, config: RouterConfig) -> Any:
        """A router process behind this socket; `table` is where it meets the others."""
        return self._start("run_router", listener, self._bus_path, table, config)

    def kill_relay(self, relay_id: str) -> None:
        """kill -9 of its process."""
        self.relays.pop(relay_id).kill()

    def freeze_bus(self) -> None:
        """Stop the bus where it is, until `bring_back` or `thaw_bus`."""
        self.freeze(self._bus_process.pid)

    def thaw_bus(self) -> None:
        self.thaw(self._bus_process.pid)

    def kill_replica(self, replica_id: str) -> list[psutil.Process]:
        """kill -9 of the replica's process; returns those that were below it."""
        process = self.replicas.pop(replica_id)
        _, *below = family(process.pid)
        self.killed.add(replica_id)
        process.kill()
        return below

    def kill_below(self, replica_id: str, title: str) -> None:
        """kill -9 of the one process below the replica's that has this in its title."""
        below = family(self.replicas[replica_id].pid)
        (engine,) = (one for one in below if title in " ".join(one.cmdline()))
        self.killed.add(replica_id)
        engine.kill()

    def send_away(self, replica_id: str) -> None:
        """Ask the replica to leave the bus and end."""
        self.killed.add(replica_id)
        self._sent_away[replica_id] = process = self.replicas.pop(replica_id)
        process.terminate()

    def processes(self) -> dict[int, str]:
        """Process ids of what runs, and what each is."""
        named = {"bus": self._bus_process}
        named |= {f"replica {name}": process for name, process in self.replicas.items()}
        named |= {f"relay {name}": process for name, process in self.relays.items()}
        named |= {f"rank {index}": rank.process for index, rank in enumerate(self.ranks.ranks)}
        return {one.pid: name for name, one in named.items() if one is not None}

    @contextmanager
    def frozen_engine(self, replica_id: str) -> Iterator[None]:
        """The processes below the replica's stand still in between; its own goes on."""
        _, *below = family(self.replicas[replica_id].pid)
        for process in below:
            process.suspend()
        try:
            yield
        finally:
            for process in below:
                with suppress(psutil.NoSuchProcess):
                    process.resume()

    def freeze(self, pid: int) -> None:
        """Stop a process and those below it where they are."""
        for process in family(pid):
            process.suspend()

    def thaw(self, pid: int) -> None:
        for process in family(pid):
            process.resume()

    async def table(self) -> MemberTable:
        return await self.bus.watch(-1, 0.0)

    async def until(
        self, true: Callable[[MemberTable], bool], what: str, timeout_s: float = READY_S
    ) -> float:
        """Wait until the member table is so; returns the seconds it took."""
        started, revision, table = time.monotonic(), -1, None
        while (left := started + timeout_s - time.monotonic()) > 0:
            with suppress(NotReady):  # the bus may be what a test has killed
                table = await self.bus.watch(revision, min(left, 1.0))
                if true(table):
                    return time.monotonic() - started
                revision = table.revision
        raise AssertionError(f"not in {timeout_s:g} s: {what}; {table}")

    async def until_served(
        self, version: int, replica_ids: list[str], timeout_s: float = READY_S
    ) -> float:
        """Wait until each of these replicas has a lease at this version or a later one."""
        return await self.until(
            lambda table: all(leased_at(table, one, version) for one in replica_ids),
            f"version {version} on {replica_ids}",
            timeout_s,
        )

    async def first_lease(self, replica_id: str) -> Member:
        """The table's row of the replica when it first has a lease."""
        seen: list[Member] = []

        def has_lease(table: MemberTable) -> bool:
            seen.extend(one for one in table.leased if one.replica_id == replica_id)
            return bool(seen)

        await self.until(has_lease, f"a lease of {replica_id}")
        return seen[0]

    async def until_gone(self, replica_id: str, *, exitcode: int = 1) -> None:
        """Wait until the replica's process has ended by itself, having left the bus first."""
        process = self._sent_away.pop(replica_id, None) or self.replicas.pop(replica_id)
        await asyncio.to_thread(process.join, READY_S)
        assert process.exitcode == exitcode, f"{replica_id} ended with {process.exitcode}"
        assert all(one.replica_id != replica_id for one in (await self.table()).members)

    async def member(self, replica_id: str) -> Member:
        return next(m for m in (await self.table()).members if m.replica_id == replica_id)

    async def train(self) -> int:
        """One train step; returns the version that it published, which is on its way."""
        deadline = time.monotonic() + READY_S
        while True:
            try:
                state = await self._trainer.state()
                if state.run_id is None:
                    state = await self._trainer.start_run(self._run)
                report = await self._trainer.train(batch(self._run.run_id, state.step + 1))
                return report.policy_version
            except NotReady:
                assert time.monotonic() < deadline, "the trainer does not come back"
                await asyncio.sleep(0.1)

    async def save(self, *, wait: bool = True) -> CheckpointReport:
        """A checkpoint of the step trained last."""
        return await self._trainer.save(self._run.run_id, None, wait)

    @property
    def checkpoints(self) -> list[str]:
        """What lies in the run's folder of checkpoints."""
        return sorted(path.name for path in Path(self._run.checkpoint_dir).iterdir())

    def parameters(self, version: int) -> dict[str, Any]:
        """Those of the model as the ranks had them when they made this version."""
        loaded: dict[str, Any] = torch.load(self.weights / f"{version}.pt")
        return loaded

    async def train_and_hold(self, rank: int, replica_ids: list[str], bucket: int = 2) -> int:
        """One train step whose version this rank stops sending in the middle."""
        handle = self.ranks.ranks[rank]
        await handle.hold.remote(replica_ids, bucket)
        version = await self.train()
        await handle.wait_until_held.remote(replica_ids)
        return version

    async def make_whole(self) -> list[str]:
        """Bring everything back that a test took away; the replicas, all at a new version."""
        replica_ids = await self.bring_back()
        await self.until_served(await self.train(), replica_ids)
        return replica_ids

    async def bring_back(self) -> list[str]:
        """Thaw or start again what a test froze or ended; the replicas, some on their way."""
        self.ranks.may_start.set()
        for process in self._living():
            self.thaw(process.pid)
        if not self._bus_process.is_alive():
            self.start_bus()
        for relay in self.relays.values():
            relay.kill()
        self.relays.clear()
        while len(self.replicas) < self._wanted:
            self.start_replica()
        while len(self.replicas) > self._wanted:
            self.kill_replica(next(iter(self.replicas)))
        return list(self.replicas)

    def _start(self, role: str, *args: Any) -> Any:
        process = FORKS.Process(target=run, args=(role, *args))
        process.start()
        self._processes = [*self._living(), process]
        return process

    def _living(self) -> list[Any]:
        """The id of a process that has ended may be somebody else's by now."""
        return [process for process in self._processes if process.is_alive()]


def family(pid: int | None) -> list[psutil.Process]:
    """A process and all below it; none if it is gone."""
    try:
        process = psutil.Process(pid)
        return [process, *process.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


async def until_ended(processes: list[psutil.Process], timeout_s: float) -> None:
    """Wait until none of them runs; what nobody has reaped yet does not run either."""
    deadline = time.monotonic() + timeout_s
    while alive := [one for one in processes if _runs(one)]:
        assert time.monotonic() < deadline, f"{alive} outlive what started them"
        await asyncio.sleep(0.02)


def _runs(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def leased_at(table: MemberTable, replica_id: str, version: int) -> bool:
    return any(
        member.replica_id == replica_id and (member.committed_version or 0) >= version
        for member in table.leased
    )
