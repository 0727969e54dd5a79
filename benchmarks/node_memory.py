"""Host memory of a node with two replicas of two workers each, before and during versions.

    python -m benchmarks.node_memory

Bus, relay, links, replicas and vLLM's engines are those that are deployed, in processes of their
own; trainer ranks, whose memory is not counted, send random bytes over TCP. The memory of the node
is the sum over its processes of what each has to itself and of its share of what it has in common
with others (PSS). Beside it stands the same node without a relay.
"""

import asyncio
import contextlib
import math
import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
from safetensors import safe_open

from benchmarks.models import make_model
from benchmarks.report import MIB, Bar, machine, options_of, show, write
from benchmarks.weight_fanout import processes
from benchmarks.weight_fanout.processes import RANKS
from benchmarks.weight_fanout.world import copies
from services.protocol.errors import NotReady
from services.protocol.weights.weights import Dtype, TensorSpec
from services.retry import retrying
from services.rollout_server.config import RolloutServerConfig
from services.rollout_server.engine.engine_environment import environment
from services.weight_bus.config import WeightBusConfig
from tests.chaos import children
from tests.chaos.calls import BusOverSocket, call

SHAPE = 768, 2560, 8, 12, 4, 64
VOCABULARY = 8192
WORKERS = 2
REPLICAS = "r1", "r3"  # odd ones belong to the relay's node
BUCKET = 4 * MIB
_UP_S, _LOOK_S, _SETTLE_S = 900.0, 0.05, 2.0
_SPAWN = multiprocessing.get_context("spawn")


def main() -> None:
    """Measure both ways, print, and write the figures if asked."""
    options = options_of(__doc__, "node_memory", versions=(12, "that are pushed")).parse_args()
    figures: dict[str, Any] = {**machine()}
    with tempfile.TemporaryDirectory(prefix="node-") as folder:
        model = make_model(Path(folder) / "model", SHAPE, vocabulary=VOCABULARY, positions=512)
        tensors = tensors_of(model)
        figures["nbytes"] = sum(math.prod(one.shape) * one.dtype.itemsize for one in tensors)
        for way, relayed in (("relay", True), ("direct", False)):
            config = RolloutServerConfig(
                model=str(model),
                replicas=len(REPLICAS),
                tensor_parallel_size=WORKERS,
                max_model_len=256,
                max_num_seqs=8,
                kv_cache_gb=0.05,
            )
            os.environ.update(environment(config))
            with Node(Path(folder) / way, config, relayed=relayed) as node:
                figures[way] = asyncio.run(node.measure(tensors, options.versions))
    report(figures)
    write(options.json, figures)


def tensors_of(model: Path) -> tuple[TensorSpec, ...]:
    """The tensors of a folder's checkpoint, divided over the ranks as FSDP2 does."""
    specs = []
    with safe_open(model / "model.safetensors", "pt") as opened:
        for name in opened.keys():  # noqa: SIM118  (no mapping)
            shape = tuple(opened.get_slice(name).get_shape())
            numel, first = math.prod(shape), -(-shape[0] // RANKS) * math.prod(shape[1:])
            shards = (first, numel - first)
            spec = TensorSpec(name=name, dtype=Dtype.FLOAT32, shape=shape, shard_numels=shards)
            specs.append(spec)
    return tuple(specs)


class Node:
    """The processes of a node, a bus and ranks; a context manager that leaves none."""

    def __init__(self, folder: Path, config: RolloutServerConfig, *, relayed: bool) -> None:
        self._folder, self._config, self._relayed = folder, config, relayed
        self._here: list[BaseProcess] = []
        self._others: list[BaseProcess] = []

    def __enter__(self) -> "Node":
        self._folder.mkdir()
        bus = self._path("bus")
        self._others.append(_begun(children.run_bus, bus, WeightBusConfig(relays=False)))
        if self._relayed:
            relay = "relay", bus, children.ELSEWHERE, self._path("relay")
            self._here.append(_begun(children.run_relay, *relay))
        for replica_id in REPLICAS:
            self._here.append(_begun(children.run_replica, replica_id, bus, self._config))
        self._bus = BusOverSocket(bus)
        return self

    def __exit__(self, *_: object) -> None:
        for process in [*self._here, *self._others]:
            for one in _family([process]):
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()
            process.join()

    def _path(self, name: str) -> str:
        return str(self._folder / name)

    async def measure(self, tensors: tuple[TensorSpec, ...], versions: int) -> dict[str, Any]:
        """Bytes of the node before the first version, and at most and after each version."""
        await self._until(lambda table: len(table.members) == len(REPLICAS))
        if self._relayed:
            await retrying(self._known, pauses=[_LOOK_S], timeout_s=_UP_S)
        await asyncio.sleep(_SETTLE_S)
        before = self._memory()
        for rank in range(RANKS):
            self._others.append(_begun(run_rank, self._path(str(rank)), self._path("bus"), rank))
        await self._until(lambda table: table.trainer_ready)
        found: dict[str, Any] = {"before": before, "most": [], "after": [], "copies": []}
        for version in range(versions):
            for name, value in (await self._push(version, tensors)).items():
                found[name].append(value)
        return found

    async def _known(self) -> None:
        if not (await self._bus.next_orders("relay", 0, 0.0)).known:
            raise NotReady("the relay has not registered")

    async def _push(self, version: int, tensors: tuple[TensorSpec, ...]) -> dict[str, int]:
        plan = processes.manifest_of(version, tensors, BUCKET, ((),) * RANKS)
        digests = []
        for rank in range(RANKS):
            sizes = tuple(plan.bucket_bytes(rank, one) for one in range(len(plan.buckets)))
            digests.append(await call(self._path(str(rank)), "snapshot", version, sizes))
        manifest = processes.manifest_of(version, tensors, BUCKET, tuple(digests))
        await self._bus.publish(manifest, processes.__name__)
        served = asyncio.create_task(
            self._until(
                lambda table: all(one.committed_version == version for one in table.members)
            )
        )
        most = 0
        while not served.done():
            most = max(most, await asyncio.to_thread(self._memory))
            await asyncio.wait([served], timeout=_LOOK_S)
        await served
        await asyncio.sleep(_SETTLE_S)
        held = copies(one.pid for one in _family(self._here))
        return {"most": most, "after": self._memory(), "copies": sum(held.values())}

    async def _until(self, holds: Any) -> None:
        revision = -1
        async with asyncio.timeout(_UP_S):
            while True:
                with contextlib.suppress(NotReady):
                    table = await self._bus.watch(revision, 0.2)
                    if holds(table):
                        return
                    revision = table.revision

    def _memory(self) -> int:
        return sum(map(_pss, _family(self._here)))


def run_rank(path: str, bus: str, rank: int) -> None:
    """A trainer rank on another machine, by what the bus knows."""
    here = SimpleNamespace(address=children.HOST, network=contextlib.nullcontext)
    processes.run_rank(here, path, bus, rank, processes.__name__)  # type: ignore[arg-type]


def _begun(run: Any, *args: Any) -> BaseProcess:
    # Not forks: what they have in common with this process is not the node's.
    process = _SPAWN.Process(target=run, args=args)
    process.start()
    return process


def _family(roots: Iterable[BaseProcess]) -> Iterator[psutil.Process]:
    for root in roots:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(root.pid)
            yield from (process, *process.children(recursive=True))


def _pss(process: psutil.Process) -> int:
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))
    return 0


def report(figures: dict[str, Any]) -> None:
    """Print what each version added to the node, and the bar."""
    nbytes, rows = figures["nbytes"], []
    for way in ("relay", "direct"):
        one = figures[way]
        for version, (most, after, held) in enumerate(
            zip(one["most"], one["after"], one["copies"], strict=True)
        ):
            rows.append([
                way,
                str(version),
                f"{one['before'] / MIB:.0f}",
                f"{(most - one['before']) / MIB:.0f}",
                f"{(after - one['before']) / MIB:.0f}",
                f"{(after - one['before']) / nbytes:.2f}",
                f"{held / nbytes:.2f}",
            ])  # fmt: skip
    columns = ["way", "version", "MiB before", "most added", "added", "/ model", "copies / model"]
    show(columns, rows, title=f"{len(REPLICAS)} x {WORKERS} workers, {nbytes / MIB:.0f} MiB")
    print(*bars(figures), sep="\n")


def bars(figures: dict[str, Any]) -> list[Bar]:
    """Limits of the memory in which versions are staged, and of all that later ones add.

    The first version adds more: engines keep the memory in which they loaded it.
    """
    relay, nbytes = figures["relay"], figures["nbytes"]
    held, grown = max(relay["copies"]), max(relay["after"]) - relay["after"][0]
    found = {"staged copies": (held, 1.1), "added by later versions": (grown, 0.1)}
    return [
        Bar(name=f"{name}, in models", found=size / nbytes, limit=limit, at_most=True)
        for name, (size, limit) in found.items()
    ]


if __name__ == "__main__":
    began = time.monotonic()
    main()
    print(f"{time.monotonic() - began:.0f} s")
