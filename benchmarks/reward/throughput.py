"""How many tests the reward service runs a second, beside a process and a jail for each.

    python -m benchmarks.reward.throughput [--json]

The same answers go through the service (in this process, in the strongest tier it finds), through a
plain subprocess for every test and through bubblewrap for every test, in turn and several times
over; figures are medians. Then a batch of which a part never ends is compared with the processor
time that its tests need by themselves.
"""

import argparse
import asyncio
import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks.reward.load import TIME_LIMIT_S, samples, shared_tests, with_time_outs
from benchmarks.reward.ways import (
    Measured,
    Way,
    by_service,
    cores,
    process_each,
    run_service,
    service,
)
from services.reward_service.scoring import Scoring

BASELINE = Path(__file__).parents[1] / "baselines" / "reward_throughput.json"
OWN, EACH, JAILED = "millrace", "subprocess a test", "bubblewrap a test"
TIME_OUTS = 0.2

Rounds = dict[str, dict[str, list[Measured]]]
"""Measurements by language and way, one a round."""


def main() -> int:
    """Run everything and print the tables; 1 when a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="how often each way has its turn")
    parser.add_argument("--samples", type=int, default=40, help="answers of 15 tests in a turn")
    parser.add_argument("--batch", type=int, default=1024, help="answers in the batch")
    parser.add_argument("--json", action="store_true", help=f"write {BASELINE.name}")
    options = parser.parse_args()
    loop = uvloop.new_event_loop()  # as in a Serve replica
    running = service(cores())
    scoring = loop.run_until_complete(running.__aenter__())
    try:
        rounds = _rounds(scoring, loop, options)
        batch = loop.run_until_complete(_batch(scoring, options.batch))
    finally:
        loop.run_until_complete(running.__aexit__(None, None, None))
    result = {
        "cores": cores(),
        "tier": str(scoring.sandbox.tier),
        "bars": (bars := _bars(rounds, batch)),
        "batch": batch,
        "medians": {
            language: {way: _median(found) for way, found in by_way.items()}
            for language, by_way in rounds.items()
        },
    }
    _print(rounds, bars, batch)
    if options.json:
        BASELINE.write_text(json.dumps(result, indent=1, sort_keys=True) + "\n")
    return 0 if all(bar["met"] for bar in bars.values()) else 1


def _rounds(
    scoring: Scoring, loop: asyncio.AbstractEventLoop, options: argparse.Namespace
) -> Rounds:
    rounds: Rounds = {}
    shared = shared_tests()
    with process_each(cores(), jailed=False) as each, process_each(cores(), jailed=True) as jailed:
        ways: dict[str, Way] = {OWN: run_service(scoring, loop), EACH: each, JAILED: jailed}
        for language in ("python", "cpp17"):
            count = options.samples if language == "python" else max(2, options.samples // 4)
            found = rounds.setdefault(language, {name: [] for name in ways})
            for number in range(-1, options.rounds):  # the first warms up and is left out
                names = list(ways)
                turn = number % len(names)
                for name in names[turn:] + names[:turn]:
                    answers = samples(language, count, tests=shared, round_=number)
                    measured = ways[name](answers[: 2 if number < 0 else None])
                    if number >= 0:
                        found[name].append(measured)
    return rounds


async def _batch(scoring: Scoring, count: int) -> dict[str, float]:
    """One call with many answers, of which a part uses its time up on its first test."""
    answers = with_time_outs(samples("python", count, tests=shared_tests(), round_=-2), TIME_OUTS)
    measured, scores = await by_service(scoring, answers)
    ended = sum(score.cpu_s for score, one in zip(scores, answers, strict=True) if one.ends)
    work_s = ended + TIME_LIMIT_S * sum(not one.ends for one in answers)
    return {
        "answers": count,
        "wall_s": measured.wall_s,
        "cpu_s": measured.cpu_s,
        "work_s": work_s,
        "wall_ratio": measured.wall_s * cores() / work_s,
        "cpu_ratio": measured.cpu_s / work_s,
    }


def _paired(
    rounds: dict[str, list[Measured]], other: str, figure: Callable[[Measured], float]
) -> float:
    """Median over rounds of another way's figure over ours in the same round."""
    pairs = zip(rounds[other], rounds[OWN], strict=True)
    return statistics.median(figure(one) / figure(own) for one, own in pairs)


def _bars(rounds: Rounds, batch: dict[str, float]) -> dict[str, dict[str, Any]]:
    python = rounds["python"]
    rate = statistics.median(one.per_core(cores()) for one in python[OWN])
    service_ms = statistics.median(1000 * one.service_s / one.tests for one in python[OWN])
    found = {
        "Python tests a second and core": (rate, 200.0, True),
        "times the rate of a subprocess a test": (_paired(python, EACH, _seconds), 1.8, True),
        "times the rate of bubblewrap a test": (_paired(python, JAILED, _seconds), 3.0, True),
        "CPU-ms of the service a test": (service_ms, 0.5, False),
        "time of the batch over its CPU work": (batch["wall_ratio"], 1.3, False),
    }
    return {
        name: {"found": round(value, 3), "bar": bar, "met": value >= bar if least else value <= bar}
        for name, (value, bar, least) in found.items()
    }


def _seconds(one: Measured) -> float:
    return one.wall_s / one.tests


def _median(found: list[Measured]) -> dict[str, float | None]:
    medians: dict[str, float | None] = {}
    for name in asdict(found[0]):
        values = [getattr(one, name) for one in found]
        medians[name] = None if None in values else round(statistics.median(values), 4)
    medians["cpu_ms_a_test"] = statistics.median(1000 * one.cpu_s / one.tests for one in found)
    medians["tests_a_second_and_core"] = statistics.median(one.per_core(cores()) for one in found)
    return medians


def _print(rounds: Rounds, bars: dict[str, dict[str, Any]], batch: dict[str, float]) -> None:
    console = Console(width=120)
    for language, by_way in rounds.items():
        table = Table(
            "way", "tests/s/core", "CPU-ms a test", "service", "slot", "test", title=language
        )
        table.add_column("rate, ours over it")
        table.add_column("CPU, it over ours")
        for way, found in by_way.items():
            table.add_row(way, *_row(by_way, way, found))
        console.print(table)
    console.print(
        f"{batch['answers']:.0f} answers, {TIME_OUTS:.0%} without end: {batch['wall_s']:.1f} s; "
        f"{batch['cpu_s']:.1f} CPU-s for {batch['work_s']:.1f} CPU-s of work"
    )
    for name, bar in bars.items():
        console.print(
            f"{'met   ' if bar['met'] else 'MISSED'} {name}: {bar['found']} (bar {bar['bar']})"
        )


def _row(by_way: dict[str, list[Measured]], way: str, found: list[Measured]) -> list[str]:
    def per_test(seconds: Callable[[Measured], float]) -> float:
        return statistics.median(1000 * seconds(one) / one.tests for one in found)

    cpu, own = per_test(lambda one: one.cpu_s), per_test(lambda one: one.service_s)
    parts = [f"{own:.2f}", "", ""]
    if way == OWN:
        inside = per_test(lambda one: one.inside_s or 0.0)
        parts[1:] = [f"{cpu - own - inside:.2f}", f"{inside:.2f}"]
    return [
        f"{statistics.median(one.per_core(cores()) for one in found):.0f}",
        f"{cpu:.2f}",
        *parts,
        f"{_paired(by_way, way, _seconds):.2f}",
        f"{_paired(by_way, way, lambda one: one.cpu_s / one.tests):.2f}",
    ]


if __name__ == "__main__":
    sys.exit(main())
