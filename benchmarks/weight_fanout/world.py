"""A bus, a trainer and nodes on machines of their own, whose cables carry so much and no more."""

import asyncio
import contextlib
import multiprocessing
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Self

import psutil

from benchmarks.weight_fanout import processes
from benchmarks.weight_fanout.model import LINK_TIMEOUT_S
from benchmarks.weight_fanout.processes import RANKS
from services.protocol.errors import NotReady
from services.protocol.weights.weight_bus import MemberTable
from services.protocol.weights.weights import WeightManifest
from services.retry import retrying
from services.weight_bus.config import WeightBusConfig
from tests.chaos.calls import BusOverSocket, call
from tests.operations.network import Machine, Network

TRAINER = "trainer"
_UP_S, _PUSHED_S, _LOOK_S = 60.0, 300.0, 0.05
_FORK = multiprocessing.get_context("fork")


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What is built.

    Attributes:
        nodes: machines with a relay and replicas.
        mbit_s: what each cable carries in each direction; 0: as much as it can.
        nbytes: of a version.
        bucket_bytes: of a bucket, of all ranks together.
        replicas: on each node.
        relays: False: every replica receives by itself.
        cables: of each machine, over which all links are spread.
    """

    nodes: int
    mbit_s: float
    nbytes: int
    bucket_bytes: int
    replicas: int = 1
    relays: bool = True
    cables: int = 1


@dataclass(frozen=True, kw_only=True)
class Push:
    """One version.

    Attributes:
        seconds: from its publication until the last replica had committed it.
        sent: bytes that left the trainer's machine, with all headers.
        held: bytes of all copies on the node that had most, at most.
    """

    seconds: float
    sent: int
    held: int


@dataclass(kw_only=True)
class Part:
    """A process, and what it runs."""

    process: BaseProcess
    run: Callable[..., None]
    args: tuple[Any, ...]


class World:
    """Processes that are up; a context manager that leaves none."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.nodes = tuple(f"n{number}" for number in range(1, shape.nodes + 1))
        self._parts: dict[str, list[Part]] = {}
        self._tensors = processes.tensors_of(shape.nbytes)
        self._version = self._groups = 0

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as opened:
            self._folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))
            cables = self.shape.cables
            network = opened.enter_context(Network([TRAINER, *self.nodes], cables=cables))
            self.machines = network.machines
            if self.shape.mbit_s:
                for machine in self.machines.values():
                    machine.limit_cables(self.shape.mbit_s)
            opened.callback(self._end)
            config = WeightBusConfig(
                link_timeout_s=LINK_TIMEOUT_S,
                stage_timeout_s=_PUSHED_S,
                relays=self.shape.relays,
                transport="gloo",
                interfaces=self.machines[TRAINER].interfaces if cables > 1 else (),
            )
            self._start(TRAINER, processes.run_bus, self._bus_path, config)
            for rank in range(RANKS):
                path = self._rank_path(rank)
                self._start(TRAINER, processes.run_rank, path, self._bus_path, rank, self._group)
            self._opened = opened.pop_all()
        self.bus = BusOverSocket(self._bus_path)
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    @property
    def _bus_path(self) -> str:
        return str(self._folder / "bus")

    def _rank_path(self, rank: int) -> str:
        return str(self._folder / f"rank{rank}")

    @property
    def _group(self) -> str:
        return f"group{self._groups}"

    def _start(self, machine: str, run: Callable[..., None], *args: Any) -> None:
        given = (self.machines[machine], *args)
        part = Part(process=_begun(run, given), run=run, args=given)
        self._parts.setdefault(machine, []).append(part)

    def revive(self) -> None:
        """Start again what has ended; new ranks are a new group."""
        ended = [
            part for parts in self._parts.values() for part in parts if not part.process.is_alive()
        ]
        self._groups += any(part.run is processes.run_rank for part in ended)
        for part in ended:
            if part.run is processes.run_rank:
                part.args = (*part.args[:-1], self._group)
            part.process = _begun(part.run, part.args)

    def _end(self) -> None:
        for process in self._of(*self._parts):
            process.kill()
        for process in self._of(*self._parts):
            process.join()

    def _of(self, *machines: str) -> Iterator[BaseProcess]:
        for machine in machines:
            yield from (part.process for part in self._parts.get(machine, ()))

    def pids(self, machine: str) -> list[int]:
        """Of a machine's processes: bus and ranks, or relay and replicas."""
        return [process.pid for process in self._of(machine) if process.pid is not None]

    async def open(self) -> None:
        """Start what each node has, one after another: that is the order of the chain."""
        await _soon(lambda: self.bus.watch(0, 0.0))
        for node in self.nodes:
            if self.shape.relays:
                self._start(node, processes.run_relay, self._bus_path)
                await _soon(partial(self._known, f"relay/{node}"))
            for number in range(self.shape.replicas):
                self._start(node, processes.run_replica, self._bus_path, f"{node}.{number}")
        everybody = len(self.nodes) * self.shape.replicas
        await self._watch(lambda table: table.trainer_ready and len(table.members) == everybody)

    async def _known(self, member_id: str) -> None:
        """The bus knows the member.

        Raises:
            NotReady: it does not, or is not up.
        """
        if not (await self.bus.next_orders(member_id, 0, 0.0)).known:
            raise NotReady(f"{member_id} has not registered")

    async def push(self, meanwhile: Callable[[], Sequence[str]] | None = None) -> Push:
        """Publish a version, and wait until every replica serves it.

        Args:
            meanwhile: is called in a thread once the version is on its way; returns the nodes
                that are not waited for any more.
        """
        trainer = self.machines[TRAINER]
        before, began = trainer.sent, await self.publish()
        lost = asyncio.create_task(asyncio.to_thread(meanwhile)) if meanwhile else None
        watching = asyncio.create_task(self._watch(lambda table: self._all_serve(table, lost)))
        held = 0
        while not watching.done():
            held = max(held, *(_held(self._of(node)) for node in self.nodes))
            await asyncio.wait([watching], timeout=_LOOK_S * len(self.nodes))
        await watching
        return Push(seconds=time.monotonic() - began, sent=trainer.sent - before, held=held)

    async def publish(self) -> float:
        """Make a version and publish it; returns when, by the monotonic clock."""
        manifest = await self._snapshot()
        began = time.monotonic()
        await self.bus.publish(manifest, self._group)
        return began

    async def until_served(self, *, besides: str = "", timeout_s: float = _PUSHED_S) -> None:
        """Wait until every replica serves the newest version, but those of one node.

        Raises:
            TimeoutError: not in time.
        """
        wanted = {
            f"{node}.{number}"
            for node in self.nodes
            if node != besides
            for number in range(self.shape.replicas)
        }

        def served(table: MemberTable) -> bool:
            at = {one.replica_id for one in table.leased if one.committed_version == self._version}
            return wanted <= at

        async with asyncio.timeout(timeout_s):
            await self._watch(served)

    def _all_serve(self, table: MemberTable, lost: "asyncio.Task[Sequence[str]] | None") -> bool:
        if lost is not None and not lost.done():
            return False
        gone = tuple(lost.result()) if lost is not None else ()
        return all(
            member.committed_version == self._version
            for member in table.members
            if member.replica_id.partition(".")[0] not in gone
        )

    async def _snapshot(self) -> WeightManifest:
        """Of the next version, from all ranks."""
        self._version += 1
        empty = ((),) * RANKS
        plan = processes.manifest_of(self._version, self._tensors, self.shape.bucket_bytes, empty)
        digests = []
        for rank in range(RANKS):
            sizes = tuple(plan.bucket_bytes(rank, one) for one in range(len(plan.buckets)))
            digests.append(await call(self._rank_path(rank), "snapshot", self._version, sizes))
        return processes.manifest_of(
            self._version, self._tensors, self.shape.bucket_bytes, tuple(digests)
        )

    async def _watch(self, holds: Callable[[MemberTable], bool]) -> None:
        revision = 0
        async with asyncio.timeout(_PUSHED_S):
            while True:
                with contextlib.suppress(NotReady):  # the bus may be what was killed
                    table = await self.bus.watch(revision, 0.2)
                    if holds(table):
                        return
                    revision = table.revision

    def half_here(self, node: str) -> Machine:
        """Wait until half a version more has come to a node; returns its machine."""
        machine = self.machines[node]
        limit, deadline = machine.received + self.shape.nbytes // 2, time.monotonic() + _PUSHED_S
        while machine.received < limit:
            if time.monotonic() > deadline:
                raise TimeoutError(f"half a version did not come to {node}")
            time.sleep(0.02)
        return machine

    def relay_cpu_s(self, node: str) -> float:
        """CPU seconds of a node's relay so far; 0 without one."""
        if not self.shape.relays:
            return 0.0
        times = psutil.Process(self.pids(node)[0]).cpu_times()
        return times.user + times.system

    def kill(self, machine: str, chosen: slice = slice(None)) -> None:
        """Kill the chosen processes of a machine, and wait for their ends."""
        for process in list(self._of(machine))[chosen]:
            process.kill()
            process.join()


def _begun(run: Callable[..., None], args: tuple[Any, ...]) -> BaseProcess:
    process = _FORK.Process(target=run, args=args, daemon=True)
    process.start()
    return process


def copies(pids: Iterable[int | None]) -> dict[int, int]:
    """The copies of versions that processes hold or map: bytes by inode."""
    found: dict[int, int] = {}
    for pid in pids:
        with contextlib.suppress(OSError):
            for entry in Path(f"/proc/{pid}/fd").iterdir():
                if "memfd:millrace" in os.readlink(entry):
                    stat = entry.stat()
                    found[stat.st_ino] = stat.st_blocks * 512
    return found


def _held(running: Iterable[BaseProcess]) -> int:
    return sum(copies(process.pid for process in running).values())


async def _soon(call: Callable[[], Awaitable[Any]]) -> None:
    await retrying(call, pauses=[0.05], timeout_s=_UP_S)
