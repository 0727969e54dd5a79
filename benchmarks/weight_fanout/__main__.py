"""One version to many nodes over links that carry little, along a chain of relays.

    python -m benchmarks.weight_fanout

Nodes are network namespaces on a bridge, and `tc` limits each cable in both directions. Bus, links
and relays are those that are deployed, in processes of their own; trainer ranks send random bytes,
and a replica without an engine maps each version and checks its digests. It needs root, iproute2
and util-linux. Both sizes of network have their own run of one node, at the same rate. A model of
the protocol, calibrated by these runs, tells how long large models take on real networks.
"""

import asyncio
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch

from benchmarks.report import MIB, Bar, machine, options_of, show, write
from benchmarks.weight_fanout.model import (
    FEW,
    LINK_TIMEOUT_S,
    MANY,
    at_size,
    chain_of,
    costs_of,
)
from benchmarks.weight_fanout.processes import let_open_files
from benchmarks.weight_fanout.world import Shape, World

LOST = "n4"
FAST = 2
"""Nodes without a limit, for the CPU time of a relay that passes on what it receives."""


def main() -> None:
    """Measure, print, and write the figures if asked."""
    options = options_of(
        __doc__,
        "weight_fanout",
        size=(64, "MiB of a version"),
        bucket_kib=(512, "KiB of a bucket"),
        few_mbit_s=(200.0, f"of each cable with {FEW} nodes"),
        many_mbit_s=(50.0, f"of each cable with {MANY} nodes, which share this machine's cores"),
        rounds=(3, "measured versions of each"),
    ).parse_args()
    torch.set_num_threads(1)
    let_open_files()
    figures = run(options)
    report(figures)
    write(options.json, figures)


def run(options: Any) -> dict[str, Any]:
    """All networks, one after another."""
    nbytes, bucket = options.size * MIB, options.bucket_kib << 10
    few, many = options.few_mbit_s, options.many_mbit_s

    def shape(nodes: int, mbit_s: float, **changed: Any) -> Shape:
        given = {"nbytes": nbytes, "bucket_bytes": bucket} | changed
        return Shape(nodes=nodes, mbit_s=mbit_s, **given)

    def pushes(*network: Any, **changed: Any) -> dict[str, Any]:
        with World(shape(*network, **changed)) as world:
            return asyncio.run(measure(world, options.rounds))

    def with_a_loss(harm: Callable[[World], Sequence[str]]) -> float:
        with World(shape(FEW, few, replicas=2)) as world:
            return asyncio.run(lose(world, harm))

    return {
        **machine(),
        "nbytes": nbytes,
        "bucket_bytes": bucket,
        "mbit_s": {"few": few, "many": many},
        "small": pushes(1, few, nbytes=bucket),
        "one": pushes(1, few),
        "two_cables": pushes(1, few, cables=2),
        "few": pushes(FEW, few, replicas=2),
        "direct": pushes(FEW, few, replicas=2, relays=False),
        "one_slow": pushes(1, many),
        "many": pushes(MANY, many),
        "fast": pushes(FAST, 0.0, nbytes=4 * nbytes, bucket_bytes=16 * MIB),
        "cut_s": with_a_loss(cut),
        "killed_s": with_a_loss(kill),
    }


async def measure(world: World, rounds: int) -> dict[str, Any]:
    """Versions to one network; every list holds one figure a version."""
    await world.open()
    await world.push()  # opens the links
    first = world.nodes[0]
    cpu_s = world.relay_cpu_s(first)
    pushes = [await world.push() for _ in range(rounds)]
    return {
        "seconds": [one.seconds for one in pushes],
        "sent": [one.sent for one in pushes],
        "held": max(one.held for one in pushes),
        "cpu_s_per_gb": (world.relay_cpu_s(first) - cpu_s) / rounds / world.shape.nbytes * 1e9,
    }


async def lose(world: World, harm: Callable[[World], Sequence[str]]) -> float:
    """Seconds of a version to the nodes that are left when others go in the middle of it."""
    await world.open()
    await world.push()  # opens the links
    return (await world.push(lambda: harm(world))).seconds


def cut(world: World) -> Sequence[str]:
    """Pull a node's cable; nobody is told."""
    world.half_here(LOST).cut()
    return [LOST]


def kill(world: World) -> Sequence[str]:
    """Kill every process of a node."""
    world.half_here(LOST)
    world.kill(LOST)
    return [LOST]


def bars(figures: dict[str, Any]) -> list[Bar]:
    """The limits, of ratios of medians."""
    few, nbytes = figures["few"], figures["nbytes"]
    lost = 1.3 * median(few["seconds"]) + LINK_TIMEOUT_S
    at_most = [
        (f"{FEW} nodes against one", _ratio(figures, "few", "one"), 1.3),
        (f"{MANY} nodes against one", _ratio(figures, "many", "one_slow"), 1.6),
        ("two interfaces against one, one node", _ratio(figures, "two_cables", "one"), 0.6),
        (f"bytes that leave the trainer, {FEW} nodes", max(few["sent"]) / nbytes, 1.1),
        (f"{MANY} nodes", max(figures["many"]["sent"]) / nbytes, 1.1),
        ("copies on a node with 2 replicas, in models", few["held"] / nbytes, 1.1),
        ("s with a node cut off in the middle", figures["cut_s"], lost),
        ("s with a node killed in the middle", figures["killed_s"], lost),
    ]
    return [Bar(name=name, found=found, limit=most, at_most=True) for name, found, most in at_most]


def _ratio(figures: dict[str, Any], above: str, below: str) -> float:
    return median(figures[above]["seconds"]) / median(figures[below]["seconds"])


def report(figures: dict[str, Any]) -> None:
    """Print the runs, the bars and what the model says."""
    found, rates = costs_of(figures), figures["mbit_s"]
    rows = []
    for name, nodes, rate, what in (
        ("one", 1, "few", "relay"),
        ("two_cables", 1, "few", "relay, two interfaces"),
        ("few", FEW, "few", "relays"),
        ("direct", FEW, "few", "no relays: each replica by itself"),
        ("one_slow", 1, "many", "relay"),
        ("many", MANY, "many", "relays"),
    ):
        one = figures[name]
        base = "one" if rate == "few" else "one_slow"
        modelled = chain_of(figures, nodes, rates[rate]).seconds(found)
        rows.append([
            str(nodes),
            f"{rates[rate]:g}",
            what,
            f"{median(one['seconds']):.2f} ({min(one['seconds']):.2f})",
            f"{_ratio(figures, name, base):.2f}",
            f"{median(one['sent']) / figures['nbytes']:.2f}",
            f"{one['held'] / figures['nbytes']:.2f}",
            "" if name in ("direct", "two_cables") else f"{modelled:.2f}",
        ])  # fmt: skip
    title = f"{figures['nbytes'] / MIB:.0f} MiB in {figures['nbytes'] // figures['bucket_bytes']}"
    columns = ["nodes", "Mbit/s", "way", "s, median (least)", "/ one node"]
    show(
        [*columns, "sent / model", "held / model", "by the model, s"],
        rows,
        title=f"{title} buckets, {figures['cores']} cores",
    )  # fmt: skip
    print(*bars(figures), sep="\n")
    print(
        f"model: {1000 * found.fixed_s:.0f} ms a version, {1000 * found.hop_s:.1f} ms a node, "
        f"{found.wire_share:.0%} of the wire, {found.cpu_s_per_gb:.2f} CPU-s/GB of a relay"
    )
    columns, *rows = at_size(found)
    show(columns, rows, title="By the model")


if __name__ == "__main__":
    main()
