"""Weights along a chain of relays while its links and nodes fail, for as long as you like.

    python -m benchmarks.soak.fanout --minutes 30 --fault-every 20

Four nodes with two replicas each behind cables of a limited rate, as in `benchmarks/weight_fanout`:
real bus, relays and links, trainer ranks that send random bytes, and replicas without engines,
which check every digest before they commit. Versions are pushed one after another. In the midst of
one a relay, a replica, a whole node, a rank or the bus is killed, a relay is frozen, or a cable is
cut. The other nodes must have that version in time, and all must have the next one when all is
whole again. Exit code 1 and the reasons if not, or if something leaks. It needs root and iproute2.
"""

import argparse
import asyncio
import os
import random
import signal
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.report import MIB, middle_and_largest, options_of
from benchmarks.soak.census import Census, Rules
from benchmarks.soak.engine import Findings, conclude, redirect_output
from benchmarks.weight_fanout.model import LINK_TIMEOUT_S
from benchmarks.weight_fanout.processes import let_open_files
from benchmarks.weight_fanout.world import TRAINER, Shape, World
from services.protocol.errors import InvalidInput, NotReady

NODES, REPLICAS = 4, 2
MBIT_S, NBYTES, BUCKET = 200.0, 32 * MIB, 512 << 10
QUIET_PUSHES = 3
WHOLE_S = 60.0
"""Longest until all nodes have a version again once a fault is undone."""
FORGIVEN_S = 3.0
"""For a busy machine, beyond what is promised."""
RULES = Rules(  # within five minutes a second version that a relay holds for a moment is a slope
    more={"rss_mib": 36.0, "fds": 12.0, "threads": 12.0}, warm_s=120.0, counts=6, least_s=300.0
)
BUS, RANKS = slice(0, 1), slice(1, None)
RELAY, ONE_REPLICA, ALL = slice(0, 1), slice(1, 2), slice(None)

Undo = Callable[[], None]


class Faults:
    """What a soak does to a world, and how it is undone."""

    def __init__(self, world: World, seed: int) -> None:
        self._world, self._draw = world, random.Random(seed)
        self._order: list[str] = []
        self.kinds: Mapping[str, Callable[[str], Undo]] = {
            "relay killed": lambda node: self._kill(node, RELAY),
            "replica killed": lambda node: self._kill(node, ONE_REPLICA),
            "node killed": lambda node: self._kill(node, ALL),
            "relay frozen": self._freeze,
            "cable cut": self._cut,
            "rank killed": lambda node: self._kill(TRAINER, RANKS),
            "bus killed": lambda node: self._kill(TRAINER, BUS),
        }

    def next(self) -> tuple[str, str]:
        """Kind of the next fault, and the node that it is about."""
        if not self._order:
            self._order = self._draw.sample(list(self.kinds), len(self.kinds))
        return self._order.pop(), self._draw.choice(self._world.nodes)

    def _kill(self, machine: str, chosen: slice) -> Undo:
        self._world.kill(machine, chosen)
        return self._world.revive

    def _freeze(self, node: str) -> Undo:
        (pid,) = self._world.pids(node)[RELAY]
        os.kill(pid, signal.SIGSTOP)
        return lambda: os.kill(pid, signal.SIGCONT)

    def _cut(self, node: str) -> Undo:
        machine = self._world.machines[node]
        machine.cut()
        return machine.heal


class Soak:
    """Pushes and faults, and what was seen of them."""

    def __init__(self, world: World, faults: Faults, findings: Findings) -> None:
        self._world, self._faults, self._findings = world, faults, findings
        self.pushes: list[float] = []
        self.others: dict[str, list[float]] = defaultdict(list)
        self.whole: dict[str, list[float]] = defaultdict(list)
        self.held = 0

    async def push(self) -> None:
        """One version to everybody."""
        done = await self._world.push()
        self.pushes.append(done.seconds)
        self.held = max(self.held, done.held)

    async def fault(self) -> str:
        """One fault in the midst of a version; returns what it was and how it went."""
        kind, node = self._faults.next()
        at_trainer = kind in ("rank killed", "bus killed")
        began = await self._world.publish()
        await asyncio.to_thread(self._world.half_here, node)
        undo = self._faults.kinds[kind](node)
        limit = 1.3 * median(self.pushes) + LINK_TIMEOUT_S + FORGIVEN_S
        if not at_trainer:  # what it had not sent yet, nobody has
            await self._in_time(
                self.others[kind],
                self._world.until_served(besides=node, timeout_s=limit),
                f"{kind} on {node}: the other nodes had not the version after {limit:.1f} s",
                began,
            )
        undo()
        undone = time.monotonic()
        await self._again(undone)
        await self._in_time(
            self.whole[kind],
            self._world.until_served(timeout_s=WHOLE_S),
            f"{kind} on {node}: not all had the next version {WHOLE_S:g} s later",
            undone,
        )
        seconds = f"whole again after {time.monotonic() - undone:.1f} s"
        return f"{kind} ({TRAINER if at_trainer else node}): {seconds}"

    async def _again(self, since: float) -> None:
        """Publish the next version, as soon as ranks and bus are there."""
        while True:
            with suppress(NotReady, OSError, InvalidInput):  # not up again, or not registered
                await self._world.publish()
                return
            if time.monotonic() > since + WHOLE_S:
                raise TimeoutError("ranks and bus do not come back")
            await asyncio.sleep(0.2)

    async def _in_time(
        self, seconds: list[float], waiting: Awaitable[None], late: str, began: float
    ) -> None:
        try:
            await waiting
        except TimeoutError:
            self._findings.wrong("late", late)
            return
        seconds.append(round(time.monotonic() - began, 2))


def main() -> None:
    """Soak, print, and write the figures if asked."""
    options = options_of(
        __doc__,
        "soak_fanout",
        minutes=(30.0, "until the last fault"),
        fault_every=(20.0, "seconds"),
        push_every=(2.0, "seconds"),
        seed=(0, "of the order of faults"),
        log=(Path, "file for the output of the parts"),
    ).parse_args()
    log = options.log or Path(tempfile.gettempdir()) / f"soak-fanout-{os.getpid()}.log"
    redirect_output(log)
    print(f"logs: {log}")
    torch.set_num_threads(1)
    let_open_files()
    findings = Findings()
    shape = Shape(nodes=NODES, mbit_s=MBIT_S, nbytes=NBYTES, bucket_bytes=BUCKET, replicas=REPLICAS)
    with World(shape) as world:
        soak = Soak(world, Faults(world, options.seed), findings)
        census = Census(lambda: _names(world), RULES)
        seconds = asyncio.run(run(world, soak, census, options, findings))
    if soak.held > 2.2 * NBYTES:
        findings.wrong("memory", f"a node held {soak.held / NBYTES:.2f} models")
    figures = {
        "pushes": len(soak.pushes),
        "push_s": [median(soak.pushes), max(soak.pushes)],
        "held": soak.held / NBYTES,
        "others": soak.others,
        "whole": soak.whole,
    }
    conclude(options, seconds, census, findings.problems, figures, summary(figures))


async def run(
    world: World, soak: Soak, census: Census, options: argparse.Namespace, findings: Findings
) -> float:
    """Everything from the first version to the last; returns the seconds that it took."""
    await world.open()
    for _ in range(QUIET_PUSHES):
        await soak.push()
    due = began = time.monotonic()
    try:
        while time.monotonic() < began + 60 * options.minutes:
            due = max(due + options.fault_every, time.monotonic())
            while time.monotonic() < due:
                await soak.push()
                await asyncio.sleep(options.push_every)
            census.take()
            print(f"{time.monotonic() - began:7.1f} s  {await soak.fault()}")
        await soak.push()
        census.take()
    # Edge of the soak: whatever ended it is a finding, and what is known is shown.
    except Exception as error:  # noqa: BLE001
        traceback.print_exception(error)
        findings.wrong("stopped", f"{type(error).__name__}: {error}")
    return time.monotonic() - began


def _names(world: World) -> dict[int, str]:
    """Every process, by pid."""
    return {
        pid: f"{machine} part {number}"
        for machine in (TRAINER, *world.nodes)
        for number, pid in enumerate(world.pids(machine))
    }


def summary(figures: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Pushes, and how long each fault took the others and took to heal."""
    middle, most = figures["push_s"]
    yield "pushes to everybody", f"{figures['pushes']}, median {middle:.2f} s, most {most:.2f} s"
    yield "copies on a node, most", f"{figures['held']:.2f} models"
    for kind, seconds in sorted(figures["whole"].items()):
        others = middle_and_largest(figures["others"].get(kind, []))
        yield (
            f"{kind}: {len(seconds)}, median and most",
            f"{middle_and_largest(seconds)} s until whole; {others} s to the others",
        )


if __name__ == "__main__":
    main()
