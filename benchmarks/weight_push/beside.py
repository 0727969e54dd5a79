"""How much longer a train step takes while the version before is pushed, on an idle second core.

    python -m benchmarks.weight_push.beside [--seconds 100] [--json [--more]]

One trainer rank has a core with all its threads, and all else has the other one: bus, relay,
rollout server. Rounds of four steps: alone, beside a push, alone again, and beside a neighbour that
copies memory without a pause, which says what the machine takes from a core whose neighbour works.
A step is only some times as long as a push, so that it feels the push; real ones are longer.
The rank's CPU seconds, of all its threads with the snapshot, say the same where others use the
machine: what a push takes from the rank's core, by its threads or by its use of memory.
"""

import asyncio
import contextlib
import json
import logging
import math
import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
import psutil
import ray

from benchmarks.report import MIB, Bar, by_name, machine, options_of, show, write
from benchmarks.weight_push.actors import Rank
from benchmarks.weight_push.world import World
from millrace_tools.cluster.private_cluster import PrivateCluster
from services.protocol.weights.weight_bus import NAMESPACE

SIZE, TOKENS, DROPPED = 150, 192, 2
CPU = ", CPU"
STEPS = ("alone", "beside a push", "alone again", "beside copying")


def main() -> None:
    """Measure, print, and write the figures if asked."""
    seconds, more = (100, "of rounds"), (False, "add to the rounds of the file")
    options = options_of(__doc__, "weight_beside", seconds=seconds, more=more).parse_args()
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
        found = asyncio.run(measure(options.seconds, Path(folder)))
    if options.more:
        before = json.loads(options.json.read_text())["rounds"]
        found["rounds"] = {name: before[name] + of for name, of in found["rounds"].items()}
    found["against_alone"] = {kind: growth(found["rounds"], kind) for kind in STEPS}
    found["cpu_against_alone"] = {kind: growth(found["rounds"], kind, CPU) for kind in STEPS}
    write(options.json, machine() | found)
    print_steps(found)


async def measure(seconds: int, folder: Path) -> dict[str, Any]:
    """Seconds of every step; the first rounds are dropped."""
    world = await World.open(SIZE, 1, folder, ranks=1)
    try:
        taken, began = [], time.monotonic()
        while time.monotonic() - began < seconds:
            divide((await world.call("do", pin_rank))[0][0])
            taken.append(await one_round(world))
        return {"bytes": world.nbytes, "rounds": by_name(taken[DROPPED:])}
    finally:
        await world.close()


async def one_round(world: World) -> dict[str, float]:
    """A step of each kind."""
    figures: dict[str, float] = {}
    _, _, made = await world.train_step(TOKENS)
    for kind in STEPS:
        is_pushed = kind == "beside a push"
        if not is_pushed:
            await world.deliver(made)
        ((_, used),) = await world.call("do", pin_rank)
        with neighbour(kind):
            began = time.monotonic()
            push = asyncio.create_task(world.deliver(made)) if is_pushed else None
            step, _, made = await world.train_step(TOKENS)
            if push is not None:
                figures["push"] = (await push)[1] - began
        figures[kind] = step.seconds["forward_backward"] + step.seconds["optimizer"]
        ((_, ended),) = await world.call("do", pin_rank)
        figures[f"{kind}{CPU}"] = ended - used
        figures["snapshot"] = step.seconds["snapshot"]
    await world.deliver(made)
    return figures


def pin_rank(rank: Rank) -> tuple[int, float]:
    """All threads of the rank on the first core; returns its process and its CPU seconds."""
    for thread in os.listdir("/proc/self/task"):
        move(int(thread), 0)
    return os.getpid(), time.process_time()


def divide(rank: int) -> None:
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
    if kind != "beside copying":
        yield
        return
    process = multiprocessing.get_context("fork").Process(target=copy, daemon=True)
    process.start()
    move(process.pid or 0, 1)
    try:
        yield
    finally:
        process.kill()
        process.join()


def copy() -> None:
    """Work that is nothing but memory, more than the caches hold."""
    source, target = np.full(150 * MIB, 1, np.uint8), np.full(150 * MIB, 2, np.uint8)
    while True:
        np.copyto(target, source)


def growth(found: dict[str, list[float]], kind: str, of: str = "") -> list[float]:
    """Of a step against those alone before and after it: the median of all rounds, and the ends of
    its interval of 95 %; `of` is what is compared, wall time if empty."""
    around = zip(found[f"alone{of}"], found[f"alone again{of}"], strict=True)
    found_ratios = sorted(
        one / mean(both) for one, both in zip(found[f"{kind}{of}"], around, strict=True)
    )
    middle, off = len(found_ratios) / 2, math.sqrt(len(found_ratios))
    low, high = (found_ratios[int(at)] for at in (middle - off, min(middle + off, 2 * middle - 1)))
    return [median(found_ratios), low, high]


def bars(found: dict[str, Any]) -> list[Bar]:
    """The limits."""
    name, grown = "a train step beside a push against one alone", found["against_alone"]
    return [Bar(name=name, found=grown["beside a push"][0], limit=1.02, at_most=True)]


def print_steps(found: dict[str, Any]) -> None:
    """The steps of each kind, and the bar."""
    rounds, rows = found["rounds"], []
    for kind in (*STEPS, "push", "snapshot"):
        of_both = (found[of].get(kind) for of in ("against_alone", "cpu_against_alone"))
        shown = ["{:.3f} ({:.3f} to {:.3f})".format(*one) if one else "" for one in of_both]
        rows.append([kind, f"{1000 * median(rounds[kind]):.0f}", *shown])
    title = f"{found['bytes'] / 1e6:.0f} MB, medians of {len(rounds['alone'])} rounds"
    show(["step", "ms", "against alone", "its CPU"], rows, title=title)
    print(*bars(found), sep="\n")


if __name__ == "__main__":
    main()
