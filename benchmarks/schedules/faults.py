"""Thousands of random schedules, times and faults, each a whole run of the real orchestrator.

    python -m benchmarks.schedules.faults [--schedules 10000] [--first 0] [--jobs 1]

Time is virtual. Replicas get lost, rollouts break, hang or are refused, graders and trainer die,
checkpoints fail, and the orchestrator is killed and goes on from the run directory. After every
transaction the ledger must balance in groups and in tokens; every group must close once, no
prompt may be skipped or trained twice, nothing be trained above the staleness bound, the oldest
go first, and every run must end. Exit code 1 and the number of each schedule that broke a rule:
`--first N --schedules 1` plays it again.
"""

import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.report import options_of
from benchmarks.schedules.virtual_run import without_output
from tests.orchestrator.random_schedule import RandomSchedule, draw, play

CHUNK = 50
MOST_CPU_S = 60.0
"""A schedule that takes more goes round and round: virtual time cannot end it."""


@dataclass
class Findings:
    """Results of some schedules.

    Attributes:
        counts: schedules, kills, deaths, transactions and virtual seconds.
        endings: sample groups by how they ended.
    """

    counts: Counter[str] = field(default_factory=Counter)
    endings: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)

    def add(self, other: "Findings") -> None:
        """Take in the results of others."""
        self.counts.update(other.counts)
        self.endings.update(other.endings)
        self.problems += other.problems

    def play(self, plan: RandomSchedule) -> None:
        """One schedule, to its end."""
        self.counts["schedules"] += 1
        with tempfile.TemporaryDirectory() as folder:
            try:
                with _limited(MOST_CPU_S):
                    life, status = play(plan, Path(folder))
            except Exception as error:  # noqa: BLE001  one that breaks must not hide the others
                self.problems.append(f"schedule {plan.seed}: {error!r}")
                return
        self.counts["kills"] += life.kills
        self.counts["deaths"] += life.deaths
        self.counts["transactions"] += life.witness.balanced
        self.counts["virtual seconds"] += round(life.ended_at)
        self.endings.update(status.ledger.model_dump(exclude={"admitted", "in_flight"}))
        self.problems += [f"schedule {plan.seed}: {what}" for what in life.witness.problems]


@contextmanager
def _limited(cpu_s: float) -> Iterator[None]:
    """Raise TimeoutError in work that takes longer."""

    def end(*_: object) -> None:
        raise TimeoutError(f"it took more than {cpu_s:g} s of processor time")

    signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, cpu_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def some(seeds: Sequence[int]) -> Findings:
    """Play some in this process."""
    without_output()
    findings = Findings()
    for seed in seeds:
        findings.play(draw(seed))
    return findings


def main() -> None:
    """Play all and print the findings."""
    parser = options_of(
        __doc__,
        schedules=10_000,
        first=(0, "number of the first"),
        jobs=(1, "processes"),
    )
    options = parser.parse_args()
    began, total = time.monotonic(), Findings()
    seeds = range(options.first, options.first + options.schedules)
    with ProcessPoolExecutor(options.jobs) as pool:
        for part in pool.map(some, [seeds[at : at + CHUNK] for at in range(0, len(seeds), CHUNK)]):
            total.add(part)
    for problem in total.problems:
        print(problem)
    counts = total.counts
    print(
        f"{counts['schedules']:,} schedules, {counts['virtual seconds'] / 86400:,.1f} virtual "
        f"days in {time.monotonic() - began:,.0f} s\n"
        f"{counts['kills']:,} kills of the orchestrator, {counts['deaths']:,} of the trainer; "
        f"sample groups: {', '.join(f'{n:,} {how}' for how, n in total.endings.items())}\n"
        f"{counts['transactions']:,} transactions checked; {len(total.problems)} rules broken"
    )
    sys.exit(bool(total.problems))


if __name__ == "__main__":
    main()
