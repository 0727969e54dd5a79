"""How many tests the reward service runs a second, beside a process and a jail for each.

    python -m benchmarks.reward.throughput [--json]

The same answers go through the service (in this process, in the strongest tier it finds), through a
plain subprocess for every test and through bubblewrap for every test, in turn and several times
over; figures are medians. Then a batch of which a part never ends is compared with the processor
time that its tests need by themselves.
"""

import argparse
import sys
from collections.abc import Callable
from dataclasses import asdict
from statistics import median
from typing import Any

import uvloop

from benchmarks.report import Bar, by_name, in_turn, options_of, ratio, show, write
from benchmarks.reward.load import TIME_LIMIT_S, samples, shared_tests, with_time_outs
from benchmarks.reward.ways import Measured, by_service, compile_all, process_each, service
from services.reward_service.config import cores_here
from services.reward_service.scoring import Scoring

OWN, EACH, JAILED = "millrace", "subprocess a test", "bubblewrap a test"
TIME_OUTS = 0.2
COLUMNS = ["way", "tests/s/core", "CPU-ms a test", "service", "slot", "test"]
COLUMNS += ["rate, ours over it", "CPU, it over ours"]

Rounds = dict[str, dict[str, list[Measured]]]
"""Measurements by language and way, one a round."""


def main() -> int:
    """Run everything and print the tables; 1 when a bar is missed."""
    parser = options_of(
        __doc__,
        "reward_throughput",
        rounds=(5, "how often each way has its turn"),
        samples=(40, "answers of 15 tests in a turn"),
        batch=(1024, "answers in the batch"),
    )
    options = parser.parse_args()
    rounds, batch, tier = uvloop.run(_measure(options))  # as in a Serve replica
    bars = _bars(rounds, batch)
    medians = {
        language: {way: _median(found) for way, found in sorted(by_way.items())}
        for language, by_way in sorted(rounds.items())
    }
    for language, by_way in rounds.items():
        rows = [[way, *_row(by_way, way, medians[language][way])] for way in by_way]
        show(COLUMNS, rows, title=language)
    print(
        f"{batch['answers']:.0f} answers, {TIME_OUTS:.0%} without end: {batch['wall_s']:.1f} s; "
        f"{batch['cpu_s']:.1f} CPU-s for {batch['work_s']:.1f} CPU-s of work"
    )
    print(*bars, sep="\n")
    result = {
        "bars": {
            one.name: {"found": round(one.found, 3), "bar": one.limit, "met": one.met}
            for one in sorted(bars, key=lambda one: one.name)
        },
        "batch": batch,
        "cores": cores_here(),
        "medians": medians,
        "tier": tier,
    }
    write(options.json, result)
    return 0 if all(one.met for one in bars) else 1


async def _measure(options: argparse.Namespace) -> tuple[Rounds, dict[str, float], str]:
    """All rounds, the batch, and the tier of the sandbox."""
    async with service(cores_here()) as scoring:
        rounds = await _rounds(scoring, options)
        return rounds, await _batch(scoring, options.batch), str(scoring.sandbox.tier)


async def _rounds(scoring: Scoring, options: argparse.Namespace) -> Rounds:
    rounds: Rounds = {}
    shared = shared_tests()
    with (
        process_each(cores_here(), jailed=False) as each,
        process_each(cores_here(), jailed=True) as jailed,
    ):
        others = {EACH: each, JAILED: jailed}
        for language, part in {"python": 1, "cpp17": 4}.items():
            count = max(2, options.samples // part)
            found = rounds.setdefault(language, {name: [] for name in (OWN, *others)})
            for number in range(-1, options.rounds):  # the first warms up and is left out
                for name in in_turn(list(found), number):
                    answers = samples(language, count, tests=shared, round_=number)
                    answers = answers[: 2 if number < 0 else None]
                    if name == OWN:
                        await compile_all(scoring, answers)
                        measured, _ = await by_service(scoring, answers)
                    else:
                        measured = others[name](answers)
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
        "wall_ratio": measured.wall_s * cores_here() / work_s,
        "cpu_ratio": measured.cpu_s / work_s,
    }


def _paired(
    rounds: dict[str, list[Measured]], other: str, figure: Callable[[Measured], float]
) -> float:
    """Median over rounds of another way's figure over ours in the same round."""
    return ratio(map(figure, rounds[other]), map(figure, rounds[OWN]))


def _bars(rounds: Rounds, batch: dict[str, float]) -> list[Bar]:
    python, cpp = rounds["python"], rounds["cpp17"]
    each, jailed = (_paired(python, other, _seconds) for other in (EACH, JAILED))
    return [
        Bar(name="Python tests a second and core", found=_rate(python[OWN]), limit=350.0),
        Bar(name="C++ tests a second and core", found=_rate(cpp[OWN]), limit=500.0),
        Bar(name="times the rate of a subprocess a test", found=each, limit=3.5),
        Bar(
            name="times the rate of a subprocess a test, C++",
            found=_paired(cpp, EACH, _seconds),
            limit=0.75,
        ),
        Bar(name="times the rate of bubblewrap a test", found=jailed, limit=3.0),
        Bar(
            name="CPU-ms of the service a test",
            found=median(1000 * one.service_s / one.tests for one in python[OWN]),
            limit=0.2,
            at_most=True,
        ),
        Bar(
            name="time of the batch over its CPU work",
            found=batch["wall_ratio"],
            limit=1.15,
            at_most=True,
        ),
    ]


def _rate(found: list[Measured]) -> float:
    return median(one.per_core(cores_here()) for one in found)


def _seconds(one: Measured) -> float:
    return one.wall_s / one.tests


def _median(found: list[Measured]) -> dict[str, Any]:
    """Figures of a turn; None where a way does not count it."""
    medians = {
        name: None if None in values else round(median(values), 4)
        for name, values in by_name([asdict(one) for one in found]).items()
    }
    medians["cpu_ms_a_test"] = median(1000 * one.cpu_s / one.tests for one in found)
    medians["tests_a_second_and_core"] = median(one.per_core(cores_here()) for one in found)
    return medians


def _row(by_way: dict[str, list[Measured]], way: str, medians: dict[str, Any]) -> list[str]:
    cpu, own = medians["cpu_ms_a_test"], 1000 * medians["service_s"] / medians["tests"]
    parts = ["", ""]
    if way == OWN:
        inside = 1000 * medians["inside_s"] / medians["tests"]
        parts = [f"{cpu - own - inside:.2f}", f"{inside:.2f}"]
    return [
        f"{medians['tests_a_second_and_core']:.0f}",
        f"{cpu:.2f}",
        f"{own:.2f}",
        *parts,
        f"{_paired(by_way, way, _seconds):.2f}",
        f"{_paired(by_way, way, lambda one: one.cpu_s / one.tests):.2f}",
    ]


if __name__ == "__main__":
    sys.exit(main())
