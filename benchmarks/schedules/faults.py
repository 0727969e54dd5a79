"""Thousands of random schedules, times and faults, each a whole run of the real orchestrator.

    python -m benchmarks.schedules.faults [--schedules 10000] [--first 0] [--jobs 1]

Time is virtual. Replicas get lost, rollouts break, hang or are refused, graders and trainer die,
checkpoints fail, and the orchestrator is killed and goes on from the run directory. After every
transaction the ledger must balance in groups and in tokens; every group must close once, no
prompt may be skipped or trained twice, nothing be trained above the staleness bound, the oldest
go first, and every run must end. Exit code 1 and the number of each schedule that broke a rule:
`--first N --schedules 1` plays it again.
"""

import argparse
import logging
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from services.orchestrator.run_folder.run_directory import RunDirectory
from tests.orchestrator.random_schedule import RandomSchedule, draw, play

CHUNK = 50
MOST_CPU_S = 60.0
"""A schedule that takes more goes round and round: virtual time cannot end it."""


@dataclass
class Findings:
    """What some schedules showed."""

    schedules: int = 0
    kills: int = 0
    deaths: int = 0
    transactions: int = 0
    virtual_s: float = 0.0
    endings: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def add(self, other: "Findings") -> None:
        """Take in what others showed."""
        self.schedules += other.schedules
        self.kills += other.kills
        self.deaths += other.deaths
        self.transactions += other.transactions
        self.virtual_s += other.virtual_s
        self.endings += other.endings
        self.problems += other.problems

    def play(self, plan: RandomSchedule) -> None:
        """One schedule, to its end."""
        self.schedules += 1
        with tempfile.TemporaryDirectory() as folder:
            try:
                with _limited(MOST_CPU_S):
                    life, status = play(plan, Path(folder))
            except Exception as error:  # noqa: BLE001  one that breaks must not hide the others
                self.problems.append(f"schedule {plan.seed}: {error!r}")
                return
        self.kills += life.kills
        self.deaths += life.deaths
        self.transactions += life.witness.balanced
        self.virtual_s += life.ended_at
        closed = status.ledger.model_dump(exclude={"admitted", "in_flight"})
        self.endings += Counter(closed)
        self.problems += [f"schedule {plan.seed}: {what}" for what in life.witness.problems]


@contextmanager
def _limited(cpu_s: float) -> Iterator[None]:
    """Raise TimeoutError in what takes longer."""

    def end(*_: object) -> None:
        raise TimeoutError(f"it took more than {cpu_s:g} s of processor time")

    signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, cpu_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def some(first: int, count: int) -> Findings:
    """Play some in this process."""
    logging.disable(logging.CRITICAL)
    RunDirectory.draw_learning_curve = lambda self: None  # type: ignore[method-assign]
    findings = Findings()
    for seed in range(first, first + count):
        findings.play(draw(seed))
    return findings


def chunks(first: int, count: int) -> Iterator[tuple[int, int]]:
    """A few schedules at a time."""
    for start in range(first, first + count, CHUNK):
        yield start, min(CHUNK, first + count - start)


def main() -> None:
    """Play all and say what was found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--schedules", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    options = parser.parse_args()
    began, all_of_them = time.monotonic(), Findings()
    with ProcessPoolExecutor(options.jobs) as pool:
        parts = [pool.submit(some, *part) for part in chunks(options.first, options.schedules)]
        for part in parts:
            all_of_them.add(part.result())
    for problem in all_of_them.problems:
        print(problem)
    endings = ", ".join(f"{count:,} {how}" for how, count in all_of_them.endings.items())
    days = all_of_them.virtual_s / 86400
    print(
        f"{all_of_them.schedules:,} schedules, {days:,.1f} virtual days in "
        f"{time.monotonic() - began:,.0f} s\n"
        f"{all_of_them.kills:,} kills of the orchestrator, {all_of_them.deaths:,} of the "
        f"trainer; sample groups: {endings}\n"
        f"{all_of_them.transactions:,} transactions looked at; "
        f"{len(all_of_them.problems)} rules broken"
    )
    sys.exit(bool(all_of_them.problems))


if __name__ == "__main__":
    main()
