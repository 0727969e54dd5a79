"""The router's choice beside the usual policies, on agents' traces and simulated replicas.

    python -m benchmarks.router.policies [--seeds 16] [--json FILE]

Our own policy is the class that the router runs. Ends with 1 when on any trace it is more
than 5 % worse than the best of the others, in makespan or in the share of prompt tokens
found in the prefix cache, or when on the whole it is not better than each of them.
"""

import random
import statistics
import sys
from bisect import bisect
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import cycle
from zlib import crc32

from benchmarks.report import by_name, options_of, show, write
from benchmarks.router.simulated_engines import Call, Engine
from benchmarks.router.traces import TRACES
from millrace_tools.simulation.clock import Clock
from services.router.config import RouterConfig
from services.router.placement.choice import ReplicaChooser

REPLICAS = [f"replica-{number}" for number in range(8)]
SLACK = 1.05


@dataclass
class Policy:
    """Gives each call to a replica.

    Attributes:
        pick: the replica for a call, at a time.
        ended: a call has ended on this replica.
    """

    pick: Callable[[Call, float], str]
    ended: Callable[[str], object] = lambda replica: None


InFlight = Counter[str]
"""Calls in flight on each replica."""


def round_robin(draw: random.Random, in_flight: InFlight) -> Policy:
    """Each in turn."""
    turns = cycle(REPLICAS)
    return Policy(lambda call, now: next(turns))


def least_requests(draw: random.Random, in_flight: InFlight) -> Policy:
    """The one with the fewest calls in flight, any of them."""
    return Policy(
        lambda call, now: min(REPLICAS, key=lambda name: (in_flight[name], draw.random()))
    )


def power_of_two(draw: random.Random, in_flight: InFlight) -> Policy:
    """The better of two that were drawn."""
    return Policy(lambda call, now: min(draw.sample(REPLICAS, 2), key=in_flight.__getitem__))


def consistent_hash(draw: random.Random, in_flight: InFlight) -> Policy:
    """By the session, without one by how the prompt begins; blind to load."""
    ring = sorted((crc32(f"{name}#{n}".encode()), name) for name in REPLICAS for n in range(100))

    def pick(call: Call, now: float) -> str:
        key = crc32((call.session or call.prefix.group or "").encode())
        return ring[bisect(ring, (key, "")) % len(ring)][1]

    return Policy(pick)


def ours(draw: random.Random, in_flight: InFlight) -> Policy:
    """The policy of the router."""
    chooser = ReplicaChooser(RouterConfig())

    def pick(call: Call, now: float) -> str:
        choice = chooser.choose(
            REPLICAS, session=call.session, prefix=call.prefix, weight=1, now=now
        )
        assert choice is not None
        return choice.replica_id

    return Policy(pick, lambda replica: chooser.release(replica, 1))


RIVALS: dict[str, Callable[[random.Random, InFlight], Policy]] = {
    "round robin": round_robin,
    "least requests": least_requests,
    "power of two": power_of_two,
    "consistent hash": consistent_hash,
}
POLICIES = {**RIVALS, "ours": ours}
Figures = dict[str, dict[str, dict[str, list[float]]]]
"""By trace, policy and what was measured; a figure for each seed."""


def simulate(trace: str, policy: str, seed: int) -> dict[str, float]:
    """Play a trace to its end.

    Returns:
        Seconds until the last answer, the share of prompt tokens found in the cache, and the
        mean seconds of a call.
    """
    clock, in_flight, seconds = Clock(), InFlight(), list[float]()
    engines = {name: Engine(clock) for name in REPLICAS}
    chosen = POLICIES[policy](random.Random(seed), in_flight)

    def submit(call: Call) -> None:
        replica, done = chosen.pick(call, clock.now), call.done
        in_flight[replica] += 1
        arrived = clock.now

        def over(now: float) -> None:
            in_flight[replica] -= 1
            chosen.ended(replica)
            seconds.append(now - arrived)
            done(now)

        call.done = over
        engines[replica].submit(call)

    for episode in TRACES[trace](random.Random(seed)):
        clock.at(episode.starts, partial(episode.play, clock, submit))
    clock.run()
    asked = sum(engine.prompt_tokens for engine in engines.values())
    cached = sum(engine.cached_tokens for engine in engines.values())
    return {
        "makespan": clock.now,
        "hit_rate": cached / asked,
        "call": statistics.fmean(seconds),
    }


def measure(seeds: range) -> Figures:
    """Every policy on every trace, a figure for each seed."""
    return {
        trace: {
            policy: by_name([simulate(trace, policy, seed) for seed in seeds])
            for policy in POLICIES
        }
        for trace in TRACES
    }


def times_ours(by: dict[str, dict[str, list[float]]], rival: str, what: str) -> float:
    """A rival's figure by ours, trace for trace: one agent that says much decides how long a
    trace takes, and is the same one for both."""
    pairs = zip(by[rival][what], by["ours"][what], strict=True)
    return statistics.geometric_mean(theirs / own for theirs, own in pairs)


def verdict(figures: Figures) -> list[str]:
    """The missed bars, in words."""
    missed = []
    for trace, by in figures.items():
        fastest = min(times_ours(by, name, "makespan") for name in RIVALS)
        most_cached = max(times_ours(by, name, "hit_rate") for name in RIVALS)
        if fastest < 1 / SLACK:
            missed.append(f"{trace}: the best makespan is {fastest:.3f} of ours")
        if most_cached > SLACK:
            missed.append(f"{trace}: the best hit rate is {most_cached:.3f} of ours")
    for name in RIVALS:
        ratios = [times_ours(by, name, "makespan") for by in figures.values()]
        whole = statistics.geometric_mean(ratios)
        if whole <= 1:
            missed.append(f"on the whole the makespan of {name} is {whole:.3f} of ours")
    return missed


def print_policies(figures: Figures) -> None:
    """The others' times by ours, hit rates, and our own figures."""
    rows = []
    for trace, by in figures.items():
        for what, name in (("makespan", "makespan"), ("call", "mean call")):
            others = [f"{times_ours(by, rival, what):.3f}" for rival in RIVALS]
            rows.append([trace, name, *others, f"{statistics.fmean(by['ours'][what]):.1f} s"])
        rates = [f"{statistics.fmean(by[policy]['hit_rate']):.1%}" for policy in POLICIES]
        rows.append([trace, "hit rate", *rates])
    show(("trace", "figure", *POLICIES), rows, title="others' time by ours: above 1 is worse")


def main() -> int:
    """Measure, print and judge."""
    seeds = (16, "traces of each kind")
    options = options_of(__doc__, "router_policies", seeds=seeds).parse_args()
    figures = measure(range(options.seeds))
    print_policies(figures)
    missed = verdict(figures)
    for line in missed:
        print("missed:", line)
    write(options.json, {"seeds": options.seeds, "traces": figures, "missed": missed})
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
