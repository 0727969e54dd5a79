"""Grades thousands of answers while sandboxes and compilers are killed at random.

    python -m benchmarks.soak.rewards [--jobs 20000] [--json]

Every job must come back exactly once, with the verdict that is known of it, or as what a loss may
make of it: `crashed_sandbox` if it lost two sandboxes, `infra_error` if none could be had. Memory
and descriptors of the service must not grow.
"""

import asyncio
import contextlib
import itertools
import os
import random
import resource
import signal
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import psutil
import uvloop

from benchmarks.report import options_of
from benchmarks.soak.census import Census, Rules
from benchmarks.soak.engine import conclude
from benchmarks.soak.reward_jobs import KINDS, draw
from services.protocol.reward.reward_service import Score, Verdict
from services.reward_service.config import RewardServiceConfig, cores_here
from services.reward_service.scoring import Scoring

BATCH, CALLERS = 40, 4
COUNT_EVERY = 200
LOST = (Verdict.CRASHED_SANDBOX, Verdict.INFRA_ERROR)
MOST_LOST = 0.05
"""Part of all jobs; more would mean that losses are not made good."""
RULES = Rules(more={"rss_mib": 48.0, "fds": 12.0}, settled=0.25)
"""Caches are full after a quarter of the jobs. Growth over the other three, of which a third is
what the last quarter may hold more than the second."""


@dataclass
class Soak:
    """The scores, and what else happened.

    Attributes:
        done: scores by job.
        lost: verdicts of jobs whose sandboxes were killed.
        problems: breaches of the rules.
        census: of this process, in which the service runs.
    """

    done: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    kills: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    census: Census = field(default_factory=lambda: Census(lambda: {os.getpid(): "service"}, RULES))

    def take(self, kind: str, score: Score) -> None:
        """Count a score, and this process now and then."""
        self.done[score.job_id] += 1
        self.kinds[kind] += 1
        if score.verdict in LOST:
            self.lost[str(score.verdict)] += 1
        elif score.verdict is not KINDS[kind].verdict:
            self.problems.append(f"{kind}: {score.verdict}: {score.detail}")
        if (score.reward is None) != (score.verdict is Verdict.INFRA_ERROR):
            self.problems.append(f"{kind}: reward {score.reward} with {score.verdict}")
        if len(self.done) % COUNT_EVERY == 0:
            self.census.take()

    def judge(self, jobs: int) -> None:
        """Look at the whole."""
        if missing := jobs - len(self.done):
            self.problems.append(f"{missing} jobs without a score")
        self.problems += [f"job {job}: {n} scores" for job, n in self.done.items() if n > 1]
        if sum(self.lost.values()) > MOST_LOST * jobs:
            self.problems.append(f"too many losses: {dict(self.lost)}")


async def soak(jobs: int, seed: int, kill_every: float) -> Soak:
    """Grade while killing."""
    seen, numbers = Soak(), iter(range(jobs))
    scoring = Scoring(RewardServiceConfig(slots=cores_here(), cache_mb=1, program_cache_mb=8))
    await scoring.start()
    names = frozenset(worker.answers.name for worker in scoring.sandbox._workers)
    killer = asyncio.create_task(_kill(random.Random(seed), kill_every, names, seen), name="killer")
    try:
        draws = random.Random(seed + 1)
        await asyncio.gather(*(_caller(scoring, numbers, draws, seen) for _ in range(CALLERS)))
    finally:
        killer.cancel()
        (ended,) = await asyncio.gather(killer, return_exceptions=True)
        await scoring.tools.aclose()
    seen.judge(jobs)
    if not isinstance(ended, asyncio.CancelledError):
        seen.problems.append(f"nothing was killed any more: {ended!r}")
    children = [child.pid for child in psutil.Process().children(recursive=True)]
    if left := {*children, *itertools.chain(*_victims(names).values())}:
        seen.problems.append(f"processes left: {sorted(left)}")
    return seen


async def _caller(
    scoring: Scoring, numbers: Iterator[int], draws: random.Random, seen: Soak
) -> None:
    """One batch after the other until there are no more jobs."""
    while True:
        drawn = [draw(draws, number) for number in itertools.islice(numbers, BATCH)]
        if not drawn:
            return
        kinds = {job.job_id: kind for kind, job in drawn}
        async for score in scoring.stream([job for _, job in drawn]):
            seen.take(kinds[score.job_id], score)


def _victims(names: frozenset[str]) -> dict[str, list[int]]:
    """Processes of the sandboxes with these names, wherever they are, and of compilers.

    A process behind a bubblewrap that was killed lives on under another parent. Forks are
    spared, as they are answers or compilers: their end by SIGKILL is a verdict, too much memory.
    """
    own = {child.pid for child in psutil.Process().children(recursive=True)}
    found: dict[str, list[int]] = {}
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess):
            line, parent = process.cmdline(), process.parent()
            if parent is not None and parent.cmdline() == line:
                continue
            if not names.isdisjoint(line):
                found.setdefault("slot", []).append(process.pid)
            elif process.pid in own and "millrace-build" in line:
                found.setdefault("compiler", []).append(process.pid)
    return found


async def _kill(chance: random.Random, every: float, names: frozenset[str], seen: Soak) -> None:
    """Kill a process of a sandbox or of a compiler, as likely, after so many jobs, about."""
    due = every
    while True:
        await asyncio.sleep(0.02)
        if len(seen.done) < due:
            continue
        found = _victims(names)
        if not found:
            continue  # every sandbox is just being started again
        due = len(seen.done) + chance.uniform(0.5, 1.5) * every
        kind = chance.choice(sorted(found))
        with contextlib.suppress(ProcessLookupError):
            os.kill(chance.choice(found[kind]), signal.SIGKILL)
            seen.kills[kind] += 1


def main() -> None:
    """Run it and say what was seen."""
    parser = options_of(
        __doc__, "soak_rewards", jobs=20_000, kill_every=(50.0, "jobs, about"), seed=0
    )
    options = parser.parse_args()
    started = time.monotonic()
    seen = uvloop.run(soak(options.jobs, options.seed, options.kill_every))
    spent = [resource.getrusage(of) for of in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    found = {
        "jobs": options.jobs,
        "cpu_seconds": round(sum(one.ru_utime + one.ru_stime for one in spent), 1),
        "kinds": dict(seen.kinds),
        "kills": dict(seen.kills),
        "lost": dict(seen.lost),
    }
    seconds, rows = time.monotonic() - started, [(name, str(one)) for name, one in found.items()]
    conclude(options, seconds, seen.census, seen.problems[:50], found, rows)


if __name__ == "__main__":
    main()
