"""Ways to bring new weights into running engines, all in one run, beside the machine's limits.

    python -m benchmarks.weight_push --sizes 3,150 --replicas 2

Two FSDP2 trainer ranks, the weight bus and vLLM replicas run as they are deployed, but
without Serve. Each round takes the ways in turn, each with new weights, and afterwards asks
every replica for logprobs, which must be the trainer's. Rounds are done on idle replicas
and again with answers under way; the first of each is dropped.
"""

import asyncio
import json
import logging
import tempfile
import time
from collections.abc import Awaitable, Sequence
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import ray

from benchmarks.processes import tree_cpu_s
from benchmarks.report import MIB, Bar, by_name, machine, options_of, show, write
from benchmarks.weight_push.actors import ANSWER_TOKENS, load_again
from benchmarks.weight_push.machine_limits import copy_rate, loopback_rate
from benchmarks.weight_push.world import SHAPES, World
from millrace_tools.cluster.private_cluster import PrivateCluster
from services.protocol.weights.weight_bus import NAMESPACE

WAYS = {
    "driver": "through the driver",
    "checkpoint": "safetensors, reload",
    "ours": "ours",
    "deltas": "ours, changes only",
}
ORDER = ("ours", "deltas", "driver", "checkpoint")  # changes are onto the version before
CHANGED = 0.02  # share of elements; a train step of real RL moves about so many in bfloat16
STREAMS = 4
QUIET_S = 1.0
TRAIN_TOKENS = {3: 2048, 150: 512, 600: 512}
EXACT = 1e-3  # nats, in float32; a layer left out is off by far more
BARS_FROM_MB = 150  # of less, the fixed cost of an update, some 50 ms, weighs more than the bytes


def main() -> None:
    """Measure, print, and write the figures if asked."""
    options = options_of(
        __doc__,
        "weight_push",
        sizes=("3,150", f"MB in float32, of {list(SHAPES)}"),
        replicas=("2", "rollout servers, e.g. 1,2,3"),
        rounds=(5, "measured rounds of each way"),
    ).parse_args()
    for size in map(int, options.sizes.split(",")):
        for replicas in map(int, options.replicas.split(",")):
            result = run(size, replicas, options.rounds)
            print_ways(result)
            if options.json:
                keep(result, options.json)


def keep(result: dict[str, Any], path: Path) -> None:
    """Put one result among those of other sizes, in the place of an older one of its own."""
    kind = itemgetter("size_mb", "replicas")
    before = json.loads(path.read_text()) if path.exists() else []
    results = [one for one in before if kind(one) != kind(result)] + [result]
    write(path, sorted(results, key=kind))


def run(size: int, replicas: int, rounds: int) -> dict[str, Any]:
    """Measure one size with one number of replicas, in a Ray of its own."""
    with PrivateCluster(num_cpus=2) as cluster, tempfile.TemporaryDirectory() as folder:
        # Space for several copies: objects that spill to disk would slow a rival down.
        ray.init(
            address="local",
            namespace=NAMESPACE,
            num_cpus=2,
            num_gpus=0,
            object_store_memory=max(256, 3 * size) * MIB,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            _temp_dir=str(cluster.folder),
        )
        return asyncio.run(measure(size, replicas, rounds, Path(folder)))


async def measure(size: int, replicas: int, rounds: int, folder: Path) -> dict[str, Any]:
    """All rounds of one size; every list holds one figure a round, in seconds."""
    world = await World.open(size, replicas, folder)
    try:
        result: dict[str, Any] = {
            "size_mb": size,
            "replicas": replicas,
            "dtype": "float32",
            "proof": True,
            "bytes": world.nbytes,
            **machine(),
        }
        before = _cpu_seconds()
        result["idle"] = await push_rounds(world, rounds, generating=False)
        await world.on_replicas("begin_answers", [ANSWER_TOKENS] * STREAMS)
        result["generating"] = await push_rounds(world, rounds, generating=True)
        await world.on_replicas("end_answers")
        result["training"] = await train_steps(world, rounds, TRAIN_TOKENS[size])
        everybody, ours = (now - then for now, then in zip(_cpu_seconds(), before, strict=True))
        result["cpu_of_others"] = (everybody - ours) / everybody
        result["bars"] = {  # at most where it is negative
            one.name: {
                "reached": one.found,
                "bar": -one.limit if one.at_most else one.limit,
                "met": one.met,
            }
            for one in bars(result)
        }
        return result
    finally:
        await world.close()


async def push_rounds(world: World, rounds: int, *, generating: bool) -> dict[str, list[Any]]:
    """Pushes by every way in turn, and what they are compared with."""
    taken = []
    for _ in range(rounds + 1):
        one: dict[str, Any] = {}
        if generating:
            one["quiet_gap"] = await gap_of(world, asyncio.sleep(QUIET_S))
            one["empty_pause"] = await gap_of(world, world.on_replicas("pause_only"))
            one["loaded_gap"] = await gap_of(world, world.on_replicas("load", load_again))
            one["only_load"] = await seconds_of(world.on_replicas("load", load_again))
        else:
            one["loopback"] = await asyncio.to_thread(loopback_rate)
            one["memory_copy"] = await asyncio.to_thread(copy_rate)
        for way in ORDER:
            one[way] = await one_push(world, way, generating=generating)
            if way == "deltas" and not generating:
                one["delta_share"] = await world.delta_share()
                one["pure_load"] = max(await world.on_replicas("in_worker", load_again))
        taken.append(one)
    return by_name(taken[1:])


async def one_push(world: World, way: str, *, generating: bool) -> dict[str, Any]:
    """New weights, one delivery, and the proof that it arrived.

    Raises:
        RuntimeError: a replica serves other weights than the trainer's.
    """
    await world.change(CHANGED)
    if generating:  # or the answers' prefill after the pause before this one counts for this way
        await world.on_replicas("next_tokens")
    push = await getattr(world, way)()
    figures = {"total": push.total, "snapshot": push.snapshot, "staged": push.staged}
    if generating:
        figures["gap"] = max(await world.on_replicas("largest_gap", push.started, push.ended))
    off = figures["off"] = await world.worst_difference()
    if off > EXACT:
        raise RuntimeError(f"{way}: a replica is {off:.2g} nats off")
    return figures


async def gap_of(world: World, work: Awaitable[object]) -> float:
    """The largest token gap of all replicas while this is awaited."""
    began = time.monotonic()
    await work
    return max(await world.on_replicas("largest_gap", began, time.monotonic()))


async def seconds_of(work: Awaitable[object]) -> float:
    """How long this takes."""
    began = time.monotonic()
    await work
    return time.monotonic() - began


async def train_steps(world: World, rounds: int, tokens: int) -> dict[str, list[float]]:
    """Train steps alone, each followed by one beside the delivery of what it made."""
    taken = []
    for _ in range(rounds + 1):
        one = {"proof": await world.prove()}
        alone, one["alone_cpu"], manifest = await world.train_step(tokens)
        began = time.monotonic()
        delivery = asyncio.create_task(world.deliver(manifest))
        pushed, one["pushed_cpu"], _ = await world.train_step(tokens)
        one["push"] = (await delivery)[1] - began
        for name, step in {"alone": alone, "pushed": pushed}.items():
            one[name] = step.seconds["forward_backward"] + step.seconds["optimizer"]
        one["snapshot"] = alone.seconds["snapshot"]
        taken.append(one)
    return by_name(taken[1:])


def _cpu_seconds() -> tuple[float, float]:
    """CPU seconds so far of all processes of the machine, and of this one's tree."""
    machine_s = psutil.cpu_times()
    return machine_s.user + machine_s.nice + machine_s.system, tree_cpu_s()


def _median(rounds: Sequence[dict[str, Any]], key: str) -> float:
    return median(one[key] for one in rounds)


def bars(result: dict[str, Any]) -> list[Bar]:
    """The limits, of ratios of medians.

    Answers are compared with a pause in which only the load happens, and train steps by the CPU of
    the training thread: where ranks, engines and answers share two cores, whatever else runs takes
    wall time from both.
    """
    idle, busy, training = result["idle"], result["generating"], result["training"]
    versus = "total against through the driver"
    staged = result["replicas"] * result["bytes"] / _median(idle["ours"], "staged")
    return [
        Bar(name=f"{versus}, idle", found=_faster(idle, "ours"), limit=4.0),
        Bar(name=f"{versus}, generating", found=_faster(busy, "ours"), limit=4.0),
        Bar(
            name="worst token gap against a pause with nothing but the load",
            found=_median(busy["ours"], "gap") / median(busy["loaded_gap"]),
            limit=1.5,
            at_most=True,
        ),
        Bar(
            name="staging against one loopback stream",
            found=staged / median(idle["loopback"]),
            limit=0.4,
        ),
        Bar(
            name="CPU of a train step beside a push against one alone",
            found=median(training["pushed_cpu"]) / median(training["alone_cpu"]),
            limit=1.05,
            at_most=True,
        ),
    ]


def _faster(rounds: dict[str, list[Any]], way: str) -> float:
    """How often a way is done while the driver's is done once."""
    return _median(rounds["driver"], "total") / _median(rounds[way], "total")


def print_ways(result: dict[str, Any]) -> None:
    """The ways, the figures beside them, and the bars."""
    idle, busy, training = result["idle"], result["generating"], result["training"]
    title = (
        f"{result['bytes'] / 1e6:.1f} MB {result['dtype']}, {result['replicas']} replicas, "
        f"{result['cores']} cores of which others used {result['cpu_of_others']:.0%}: "
        f"median (minimum) ms of {len(idle['ours'])} rounds"
    )
    columns = ["way", "total, idle", "driver /", "snapshot", "staged"]
    columns += ["total, generating", "driver /", "token gap", "/ only load"]
    rows = []
    for way, name in WAYS.items():
        cells = [name]
        for rounds in (idle, busy):
            cells += [_ms([one["total"] for one in rounds[way]]), f"{_faster(rounds, way):.1f}x"]
        staged = _ms([one["staged"] for one in idle[way]]) if idle[way][0]["staged"] else ""
        cells[3:3] = [_ms([one["snapshot"] for one in idle[way]]), staged]
        ratio = _median(busy[way], "gap") / median(busy["loaded_gap"])
        rows.append([*cells, _ms([one["gap"] for one in busy[way]]), f"{ratio:.2f}x"])
    show(columns, rows, title=title)
    for name, value in {
        "memory copy, one thread": f"{median(idle['memory_copy']) / 1e9:.1f} GB/s",
        "loopback, one stream": f"{median(idle['loopback']) / 1e9:.2f} GB/s",
        "pure load, all replicas at once": _ms(idle["pure_load"]),
        "token gap without a push": _ms(busy["quiet_gap"]),
        "token gap of a pause that loads nothing": _ms(busy["empty_pause"]),
        "token gap of a pause with nothing but the load": _ms(busy["loaded_gap"]),
        "pause with nothing but the load, generating": (
            f"{_ms(busy['only_load'])}, which no push can be faster than: "
            f"{_median(busy['driver'], 'total') / median(busy['only_load']):.1f}x"
        ),
        "sent as changes": f"{median(idle['delta_share']):.1%} of the bytes",
        "forward of the proof, once the version is delivered": _ms(training["proof"]),
        "train step alone": f"{_ms(training['alone'])}, CPU {_ms(training['alone_cpu'])}",
        "beside a push": f"{_ms(training['pushed'])}, CPU {_ms(training['pushed_cpu'])}",
    }.items():
        print(f"  {name}: {value}")
    if result["size_mb"] >= BARS_FROM_MB:
        print(*bars(result), sep="\n")


def _ms(values: Sequence[float]) -> str:
    return f"{1000 * median(values):.0f} ({1000 * min(values):.0f})"


if __name__ == "__main__":
    main()
