"""The router's choice beside the usual policies, on agents' traces and simulated replicas.

    python -m benchmarks.router.policies [--seeds 16] [--json FILE]

Our own policy is the class that the router runs. Ends with 1 when on any trace it is more
than 5 % worse than the best of the others, in makespan or in the share of prompt tokens
found in the prefix cache, or when on the whole it is not better than each of them.
"""

import random
import statistics
import sys
from abc import ABC, abstractmethod
from bisect import bisect
from collections.abc import Callable
from zlib import crc32

from benchmarks.report import options_of, show, write
from benchmarks.router.simulated_engines import Call, Clock, Engine
from benchmarks.router.traces import TRACES, Episode
from services.router.config import RouterConfig
from services.router.placement.choice import ReplicaChooser

REPLICAS = [f"replica-{number}" for number in range(8)]
SLACK = 1.05


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

    _ring = sorted((crc32(f"{name}#{n}".encode()), name) for name in REPLICAS for n in range(100))

    def pick(self, call: Call, now: float) -> str:
        """See `Policy`."""
        key = crc32((call.session or call.prefix.group or "").encode())
        return self._ring[bisect(self._ring, (key, "")) % len(self._ring)][1]


class Ours(Policy):
    """What the router does."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._chooser = ReplicaChooser(RouterConfig())

    def pick(self, call: Call, now: float) -> str:
        """See `Policy`."""
        choice = self._chooser.choose(
            REPLICAS, session=call.session, prefix=call.prefix, weight=1, now=now
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
Figures = dict[str, dict[str, dict[str, list[float]]]]
"""By trace, policy and what was measured; a figure for each seed."""


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


def measure(seeds: range) -> Figures:
    """Every policy on every trace, a figure for each seed."""
    figures: Figures = {}
    for trace, make in TRACES.items():
        figures[trace] = {}
        for name, policy in POLICIES.items():
            rounds = [simulate(make(random.Random(seed)), policy(seed)) for seed in seeds]
            figures[trace][name] = {what: [one[what] for one in rounds] for what in rounds[0]}
    return figures


def times_ours(by: dict[str, dict[str, list[float]]], rival: str, what: str) -> float:
    """A rival's figure by ours, trace for trace: one agent that says much decides how long a
    trace takes, and is the same one for both."""
    pairs = zip(by[rival][what], by["ours"][what], strict=True)
    return statistics.geometric_mean(theirs / own for theirs, own in pairs)


def verdict(figures: Figures) -> list[str]:
    """What misses the bar."""
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
    columns = ("trace", "figure", *RIVALS, "ours")
    show(columns, rows, title="others' time by ours: above 1 is worse")


def main() -> int:
    """Measure, print and judge."""
    parser = options_of(
        __doc__,
        "router_policies",
        seeds=(16, "traces of each kind"),
        first_seed=(0, "for other traces"),
    )
    options = parser.parse_args()
    figures = measure(range(options.first_seed, options.first_seed + options.seeds))
    print_policies(figures)
    missed = verdict(figures)
    for line in missed:
        print("missed:", line)
    write(options.json, {"seeds": options.seeds, "traces": figures, "missed": missed})
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
