"""How much longer a train step takes while the version before is pushed, on an idle second core.

    python -m benchmarks.weight_push.beside [--rounds 12] [--json]

One trainer rank has a core, and all else has the other one: bus, relay, rollout server. Rounds of
four steps, in turn: alone, beside a push, and beside two neighbours that do nothing for a push: one
that only computes and one that copies memory without a pause. Those say what the machine takes from
a core whose neighbour works. The rank's own hashing and sending threads are on the rank's core in
one half of the rounds (`together`), and on the other one in the other half (`apart`).
"""

import asyncio
import contextlib
import logging
import multiprocessing
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil
import ray

from benchmarks.report import MIB, Bar, by_name, in_turn, machine, options_of, ratio, show, write
from benchmarks.weight_push.actors import Rank
from benchmarks.weight_push.world import World
from millrace_tools.cluster.private_cluster import PrivateCluster
from services.protocol.weights.weight_bus import NAMESPACE

SIZE, TOKENS = 150, 384
BARS = {"beside a push": 1.02}
PLACES = ("together", "apart")
STEPS = ("alone", "beside a push", "beside computing", "beside copying")


def main() -> None:
    """Measure, print, and write the figures if asked."""
    rounds = (12, "measured rounds")
    options = options_of(__doc__, "weight_beside", rounds=rounds).parse_args()
    with PrivateCluster(num_cpus=2) as cluster, tempfile.TemporaryDirectory() as folder:
        ray.init(
            address="local",
            namespace=NAMESPACE,
            num_cpus=2,
            num_gpus=0,
            object_store_memory=256 * MIB,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            _temp_dir=str(cluster.folder),
        )
        found = asyncio.run(measure(options.rounds, Path(folder)))
    write(options.json, machine() | found)
    print_steps(found)


async def measure(rounds: int, folder: Path) -> dict[str, Any]:
    """Seconds of every step by where the rank's threads are; the first round is dropped."""
    world = await World.open(SIZE, 1, folder, ranks=1)
    try:
        taken: dict[str, list[dict[str, float]]] = {place: [] for place in PLACES}
        for number in range(-2, rounds):
            place = PLACES[number % 2]
            divide(world, await pin(world, place))
            figures = await one_round(world, number, place)
            if number >= 0:
                taken[place].append(figures)
        return {"bytes": world.nbytes} | {place: by_name(of) for place, of in taken.items()}
    finally:
        await world.close()


async def one_round(world: World, number: int, place: str) -> dict[str, float]:
    """A step of each kind."""
    figures: dict[str, float] = {}
    _, _, manifest = await world.train_step(TOKENS)
    for kind in in_turn(STEPS, number):
        await world.prove()  # of the version before, as the trainer does ahead of a step
        await pin(world, place)
        push = None
        with neighbour(kind):
            began = time.monotonic()
            if kind == "beside a push":
                push = asyncio.create_task(world.deliver(manifest))
            step, _, newer = await world.train_step(TOKENS)
            if push is not None:
                figures["push"] = (await push)[1] - began
        figures[kind] = step.seconds["forward_backward"] + step.seconds["optimizer"]
        figures["snapshot"] = step.seconds["snapshot"]
        manifest = newer
        if push is None:
            await world.deliver(manifest)
    return figures


async def pin(world: World, place: str) -> int:
    """Put the threads of the rank where they belong; returns its process."""
    (pid,) = await world.call("do", pin_rank, place == "apart")
    return int(pid)


def pin_rank(rank: Rank, apart: bool) -> int:
    """The torch thread, which this is, on the first core; the others there, too, or apart."""
    own = threading.get_native_id()
    for thread in os.listdir("/proc/self/task"):
        move(int(thread), 1 if apart and int(thread) != own else 0)
    return os.getpid()


def divide(world: World, rank: int) -> None:
    """Put all other processes of this benchmark on the second core."""
    me = psutil.Process()
    for process in (me, *me.children(recursive=True)):
        if process.pid != rank:
            try:
                threads = os.listdir(f"/proc/{process.pid}/task")
            except OSError:
                continue  # it has ended
            for thread in threads:
                move(int(thread), 1)


def move(thread: int, core: int) -> None:
    """Let a thread run on one core."""
    with contextlib.suppress(ProcessLookupError):  # it has ended
        os.sched_setaffinity(thread, {sorted(CORES)[core]})


CORES = os.sched_getaffinity(0)


@contextlib.contextmanager
def neighbour(kind: str) -> Iterator[None]:
    """What the second core does besides."""
    work = {"beside computing": compute, "beside copying": copy}.get(kind)
    if work is None:
        yield
        return
    process = multiprocessing.get_context("fork").Process(target=work, daemon=True)
    process.start()
    move(process.pid or 0, 1)
    try:
        yield
    finally:
        process.kill()
        process.join()


def compute() -> None:
    """Work that needs no memory."""
    number = 1
    while True:
        number = number * 1103515245 % 2147483647


def copy() -> None:
    """Work that is nothing but memory, more than the caches hold."""
    source, target = np.full(150 * MIB, 1, np.uint8), np.full(150 * MIB, 2, np.uint8)
    while True:
        np.copyto(target, source)


def bars(found: dict[str, Any]) -> list[Bar]:
    """The limits."""
    return [
        Bar(
            name=f"a train step {kind} against one alone, the rank's threads {place}",
            found=ratio(found[place][kind], found[place]["alone"]),
            limit=limit,
            at_most=True,
        )
        for kind, limit in BARS.items()
        for place in PLACES
    ]


def print_steps(found: dict[str, Any]) -> None:
    """The steps of each kind, and the bars."""
    rows = []
    for place in PLACES:
        of = found[place]
        for kind in STEPS:
            grown = f"{ratio(of[kind], of['alone']):.3f}"
            rows.append([place, kind, f"{1000 * median(of[kind]):.0f}", grown])
        for kind in ("push", "snapshot"):
            rows.append([place, kind, f"{1000 * median(of[kind]):.0f}", ""])
    title = f"{found['bytes'] / 1e6:.0f} MB, medians of {len(found['apart']['alone'])} rounds"
    show(["threads of the rank", "step", "ms", "against alone"], rows, title=title)
    print(*bars(found), sep="\n")


if __name__ == "__main__":
    main()
