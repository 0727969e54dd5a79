"""The router's choice beside the usual policies, on agents' traces and simulated replicas.

    .venv/bin/python benchmarks/router_policies.py [--seeds 3] [--json FILE]

Our own policy is the class that the router runs. Ends with 1 when on any trace it is more
than 5 % worse than the best of the others, in makespan or in the share of prompt tokens
found in the prefix cache, or when on the whole it is not better than each of them.
"""

import argparse
import json
import random
import statistics
import sys
import zlib
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from router_engines import Call, Clock, Engine
from router_traces import TRACES, Episode

from services.router.choice import ReplicaChooser
from services.router.config import RouterConfig

REPLICAS = [f"replica-{number}" for number in range(8)]
SLACK = 1.05
BASELINE = Path(__file__).parent / "baselines" / "router_policies.json"


class Policy(ABC):
    """Gives each call to a replica; knows what is in flight."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)
        self.in_flight = dict.fromkeys(REPLICAS, 0)

    @abstractmethod
    def pick(self, call: Call, now: float) -> str:
        """The replica."""

    def over(self, replica: str) -> None:
        """The call has ended there."""
        self.in_flight[replica] -= 1


class RoundRobin(Policy):
    """Each in turn."""

    _turn = 0

    def pick(self, call: Call, now: float) -> str:
        """See `Policy`."""
        self._turn += 1
        return REPLICAS[self._turn % len(REPLICAS)]


class LeastRequests(Policy):
    """The one with the fewest calls in flight, any of them."""

    def pick(self, call: Call, now: float) -> str:
        """See `Policy`."""
        return min(REPLICAS, key=lambda name: (self.in_flight[name], self._draw.random()))


class PowerOfTwo(Policy):
    """The better of two that were drawn."""

    def pick(self, call: Call, now: float) -> str:
        """See `Policy`."""
        return min(self._draw.sample(REPLICAS, 2), key=self.in_flight.__getitem__)


class ConsistentHash(Policy):
    """By the session, without one by how the prompt begins; blind to load."""

    _points = sorted(
        (zlib.crc32(f"{name}#{n}".encode()), name) for name in REPLICAS for n in range(100)
    )

    def pick(self, call: Call, now: float) -> str:
        """See `Policy`."""
        at = zlib.crc32((call.session or call.opening.group or "").encode())
        return next((name for point, name in self._points if point >= at), self._points[0][1])


class Ours(Policy):
    """What the router does."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._chooser = ReplicaChooser(RouterConfig())

    def pick(self, call: Call, now: float) -> str:
        """See `Policy`."""
        choice = self._chooser.choose(
            REPLICAS, session=call.session, opening=call.opening, weight=1, now=now
        )
        assert choice is not None
        return choice.replica_id

    def over(self, replica: str) -> None:
        """See `Policy`."""
        super().over(replica)
        self._chooser.release(replica, 1)


RIVALS: dict[str, Callable[[int], Policy]] = {
    "round robin": RoundRobin,
    "least requests": LeastRequests,
    "power of two": PowerOfTwo,
    "consistent hash": ConsistentHash,
}
POLICIES = {**RIVALS, "ours": Ours}


def simulate(episodes: list[Episode], policy: Policy) -> dict[str, float]:
    """Play a trace to its end.

    Returns:
        Seconds until the last answer, the share of prompt tokens found in the cache, and the
        mean seconds of a call.
    """
    clock = Clock()
    engines = {name: Engine(clock) for name in REPLICAS}
    seconds: list[float] = []

    def submit(call: Call) -> None:
        replica, done = policy.pick(call, clock.now), call.done
        policy.in_flight[replica] += 1
        arrived = clock.now

        def over(now: float) -> None:
            policy.over(replica)
            seconds.append(now - arrived)
            done(now)

        call.done = over
        engines[replica].submit(call)

    for episode in episodes:
        clock.at(episode.starts, lambda episode=episode: episode.play(clock, submit))  # type: ignore[misc]
    clock.run()
    asked = sum(engine.prompt_tokens for engine in engines.values())
    cached = sum(engine.cached_tokens for engine in engines.values())
    return {
        "makespan": clock.now,
        "hit_rate": cached / asked,
        "call": statistics.fmean(seconds),
    }


def measure(seeds: int) -> dict[str, dict[str, dict[str, float]]]:
    """Every policy on every trace: the mean of all seeds."""
    figures: dict[str, dict[str, dict[str, float]]] = {}
    for trace, make in TRACES.items():
        figures[trace] = {}
        for name, policy in POLICIES.items():
            rounds = [simulate(make(random.Random(seed)), policy(seed)) for seed in range(seeds)]
            figures[trace][name] = {
                what: statistics.fmean(one[what] for one in rounds) for what in rounds[0]
            }
    return figures


def verdict(figures: dict[str, dict[str, dict[str, float]]]) -> list[str]:
    """What misses the bar."""
    missed = []
    shares: dict[str, list[float]] = defaultdict(list)
    for trace, by in figures.items():
        ours = by["ours"]
        fastest = min(by[name]["makespan"] for name in RIVALS)
        most_cached = max(by[name]["hit_rate"] for name in RIVALS)
        if ours["makespan"] > fastest * SLACK:
            missed.append(f"{trace}: makespan {ours['makespan'] / fastest:.3f} of the best")
        if ours["hit_rate"] * SLACK < most_cached:
            missed.append(f"{trace}: hit rate {ours['hit_rate'] / most_cached:.3f} of the best")
        for name in RIVALS:
            shares[name].append(ours["makespan"] / by[name]["makespan"])
    for name, ratios in shares.items():
        whole = statistics.geometric_mean(ratios)
        if whole >= 1:
            missed.append(f"on the whole: makespan {whole:.3f} of {name}")
    return missed


def show(figures: dict[str, dict[str, dict[str, float]]], console: Console) -> None:
    """Ratios to ours, and our own figures."""
    table = Table(
        "trace", "what", *RIVALS, "ours", title="makespan: others by ours; above 1 is worse"
    )
    for trace, by in figures.items():
        for what, name in (
            ("makespan", "makespan"),
            ("call", "mean call"),
            ("hit_rate", "hit rate"),
        ):
            own = by["ours"][what]
            rates = what == "hit_rate"
            others = [
                f"{by[rival][what]:.1%}" if rates else f"{by[rival][what] / own:.2f}"
                for rival in RIVALS
            ]
            table.add_row(trace, name, *others, f"{own:.1%}" if rates else f"{own:.1f} s")
    console.print(table)


def main() -> int:
    """Measure, print and judge."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3, help="traces of each kind")
    parser.add_argument("--json", type=Path, nargs="?", const=BASELINE, help="write figures here")
    options = parser.parse_args()
    figures = measure(options.seeds)
    show(figures, Console(width=120))
    missed = verdict(figures)
    for line in missed:
        print("missed:", line)
    if options.json:
        result: dict[str, Any] = {"seeds": options.seeds, "traces": figures, "missed": missed}
        options.json.write_text(json.dumps(result, indent=1) + "\n")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
