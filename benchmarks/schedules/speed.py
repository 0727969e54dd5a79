"""How fast each schedule trains, beside `sync` with a batch barrier and beside its ideal.

    python -m benchmarks.schedules.speed [--replicas 8 64] [--tails heavy] [--rewards 0.78]
        [--json FILE]

The orchestrator is the real one, in virtual time, on a simulated cluster
(`cluster.py`). Answers are from log-normal traces, light to very heavy tails; grading
a batch alone takes none, half or 0.78 of the time of its rollout (140 s against 180 s), or all
of it. Speed is trained tokens, and unique prompts, per second over the middle of the run, as a
ratio to `sync` with `batch_barrier`, on the same hardware and trace. In brackets: the share of the
speed of the ideal schedule with the same parameters (`millrace_tools/simulation`), and how far
the whole is from what no schedule could beat at all, by the scarcest thing (`ideal.py`).

CPU is that of this process less what the simulated cluster took, per trajectory. With `--json`
the figures of the cases that were played replace those in the file. Ends with 1 unless
every schedule reaches 95 % of its ideal, `partial` and `async` are above 2.0 times on heavy tails
with reward time, and CPU is below 2 ms and no more than 1.5 times as much with most replicas
as with fewest.
"""

import gc
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.report import options_of, show, write
from benchmarks.schedules.cluster import Cluster
from benchmarks.schedules.hardware import MEAN_TOKENS, Trace, simulated
from benchmarks.schedules.ideal import bounds
from benchmarks.schedules.virtual_run import live, run_file, without_output
from millrace_tools.simulation.hardware import Hardware, Setup
from millrace_tools.simulation.oracle import ideal
from services.protocol.run.schedule import ScheduleConfig

GROUP_SIZE = 8
WARM = 5
POINTS: dict[str, dict[str, Any]] = {
    "sync, barrier": {"preset": "sync", "batch_barrier": True},
    "sync": {"preset": "sync"},
    "one_step_off": {"preset": "one_step_off"},
    "stream": {"preset": "stream"},
    "partial": {"preset": "partial", "max_staleness": 4},
    "async": {"preset": "async", "max_staleness": 4},
}
TAILS = {"light": 0.3, "middling": 0.6, "heavy": 0.9, "very heavy": 1.2}
HEAVY = ("heavy", "very heavy")
SHARES = (0.0, 0.5, 0.78, 1.0)
OF_IDEAL, SPEEDUP, CPU_MS, GROWTH = 0.95, 2.0, 2.0, 1.5


@dataclass(frozen=True, kw_only=True)
class Case:
    """Hardware and trace.

    Attributes:
        share: time to grade a batch alone, as a share of the time to roll it out.
        steps: train steps of the run.
    """

    replicas: int
    slots: int
    tail: str
    share: float
    steps: int

    @property
    def batch_groups(self) -> int:
        """A batch fills every slot of every replica once."""
        return self.replicas * self.slots // GROUP_SIZE

    def setup(self, schedule: ScheduleConfig) -> Setup:
        """Training takes a third of the time that sampling a batch needs on full replicas."""
        sequences, batch = self.replicas * self.slots, self.batch_groups
        sandboxes, lengths = max(1, sequences // 16), self._trace(0.0)
        tokens = [max(lengths.group(n + 1).tokens) for n in range(self.steps * batch)]
        batches = [max(tokens[first : first + batch]) for first in range(0, len(tokens), batch)]
        score_s = self.share * fmean(batches) * sandboxes / sequences
        hardware = Hardware(
            replicas=self.replicas,
            slots=self.slots,
            sandboxes=sandboxes,
            train_s=MEAN_TOKENS / 3,
            push_s=MEAN_TOKENS / 60,
        )
        return Setup(
            schedule=schedule,
            batch_groups=batch,
            steps=self.steps,
            hardware=hardware,
            trace=self._trace(score_s),
        )

    def _trace(self, score_s: float) -> Trace:
        return Trace(sigma=TAILS[self.tail], score_s=score_s, group_size=GROUP_SIZE, seed=1)


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Figures of a schedule on a case.

    Attributes:
        tokens_per_s: trained tokens a second.
        prompts_per_s: prompts trained a second; none is trained twice.
        of_ideal: trained tokens a second of the whole run over those of the ideal schedule.
        of_blind: the same, of the ideal that does not know lengths beforehand.
        ideal: the order in which that one serves waiting answers.
        of_bound: the largest lower bound on the time of the same steps over the time taken.
        scarce: of what there is least, by that bound.
        length: mean tokens of trained answers over those of the trace.
        cpu_ms: CPU of the orchestrator per trajectory, milliseconds, its event loop included.
        simulated_ms: CPU of the simulated cluster per trajectory, milliseconds.
    """

    tokens_per_s: float
    prompts_per_s: float
    of_ideal: float
    of_blind: float
    ideal: str
    of_bound: float
    scarce: str
    length: float
    cpu_ms: float
    simulated_ms: float


def play(case: Case, point: dict[str, Any], folder: Path) -> Figures:
    """A whole run."""
    setup = case.setup(ScheduleConfig.model_validate(point))
    shape = {"steps": case.steps, "batch_groups": case.batch_groups, "group_size": GROUP_SIZE}
    run, cluster = run_file(folder, schedule=point, **shape), Cluster(setup.hardware, setup.trace)
    gc.collect()
    began, simulated.cpu_s = time.process_time(), 0.0
    live(run, cluster)
    return _figures(setup, cluster, time.process_time() - began)


def _figures(setup: Setup, cluster: Cluster, cpu_s: float) -> Figures:
    """Speed over the middle of the run: while it fills up and ends, no schedule is itself.

    The ideal has the same beginning and end, so that the whole runs are compared.
    """
    steps, last = cluster.trainer.steps, setup.steps - setup.schedule.max_staleness - 2
    middle, took_s = steps[WARM + 1 : last + 1], steps[last].ended - steps[WARM].ended

    def tokens(groups: Sequence[int]) -> int:
        return sum(sum(setup.trace.group(group).tokens) for group in groups)

    groups = [group for step in middle for group in step.groups]
    trained = [group for step in steps for group in step.groups]
    everything = range(1, setup.steps * setup.batch_groups + 1)
    speed = tokens(trained) / (steps[-1].ended - (cluster.rollouts.began or 0.0))
    (best, blind), least = ideal(setup), bounds(middle, setup)
    answers = GROUP_SIZE * len(trained)
    return Figures(
        tokens_per_s=tokens(groups) / took_s,
        prompts_per_s=len(groups) / took_s,
        of_ideal=speed / best.tokens_per_s,
        of_blind=speed / blind.tokens_per_s,
        ideal=best.order,
        of_bound=max(least.values()) / took_s,
        scarce=max(least, key=least.__getitem__),
        length=tokens(groups) / len(groups) / (tokens(everything) / len(everything)),
        cpu_ms=1e3 * (cpu_s - simulated.cpu_s) / answers,
        simulated_ms=1e3 * simulated.cpu_s / answers,
    )


Results = list[tuple[Case, dict[str, Figures]]]


def _write(path: Path, results: Results) -> None:
    """Put what is done so far into the file, since the rest may take minutes."""
    every = dict(results)
    for row in json.loads(path.read_text())["cases"] if path.exists() else ():
        figures = {name: Figures(**one) for name, one in row.pop("schedules").items()}
        every.setdefault(Case(**row), figures)
    tails = list(TAILS)
    ordered = sorted(
        every.items(), key=lambda one: (one[0].replicas, tails.index(one[0].tail), one[0].share)
    )
    rows = [
        asdict(case) | {"schedules": {name: asdict(one) for name, one in figures.items()}}
        for case, figures in ordered
    ]
    write(path, {"cases": rows, "missed": judge(ordered)})


def cases(
    replicas: Sequence[int], tails: Sequence[str] | None, rewards: Sequence[float] | None
) -> list[Case]:
    """By default every trace with up to 8 replicas, and heavy tails with reward time with more."""
    return [
        Case(
            replicas=count,
            slots=8 if count <= 64 else 1,
            tail=tail,
            share=share,
            steps=40 if count <= 64 else 16,
        )
        for count in sorted(replicas)
        for tail in tails or (TAILS if count <= 8 else ("heavy",))
        for share in rewards or (SHARES if count <= 8 else (0.78,))
    ]


def _show(results: Results) -> None:
    rows = []
    for case, figures in results:
        base = figures["sync, barrier"].tokens_per_s
        cells = [
            f"{one.tokens_per_s / base:.2f} ({one.of_ideal:.0%}, {one.of_bound:.0%} "
            f"{one.scarce[:4]})"
            for one in figures.values()
        ]
        cpu = max(one.cpu_ms for one in figures.values())
        rows.append([str(case.replicas), case.tail, f"{case.share:g}", *cells, f"{cpu:.2f}"])
    show(("replicas", "tail", "reward", *POINTS, "CPU ms"), rows)


def judge(results: Results) -> list[str]:
    """The missed bars, in words."""
    missed = []
    for case, figures in results:
        where = f"{case.replicas} replicas, {case.tail} tail, reward {case.share:g}"
        base = figures["sync, barrier"].tokens_per_s
        for name, one in figures.items():
            if one.of_ideal < OF_IDEAL:
                missed.append(f"{where}: {name} reaches {one.of_ideal:.1%} of its ideal")
            if one.cpu_ms > CPU_MS:
                missed.append(f"{where}: {name} takes {one.cpu_ms:.2f} ms CPU per trajectory")
            timed = case.tail in HEAVY and case.share
            if name in ("partial", "async") and timed and one.tokens_per_s / base < SPEEDUP:
                missed.append(f"{where}: {name} is {one.tokens_per_s / base:.2f} times sync")
    fewest, most = results[0][0].replicas, results[-1][0].replicas
    for name in POINTS:
        cpu = {
            count: min(f[name].cpu_ms for case, f in results if case.replicas == count)
            for count in (fewest, most)
        }
        if cpu[most] > GROWTH * cpu[fewest]:
            missed.append(f"{name}: {cpu[most]:.2f} ms CPU with {most}, {cpu[fewest]:.2f} at least")
    return missed


def main() -> None:
    """Play all, print, and write the figures if asked."""
    parser = options_of(__doc__, "schedules", replicas=[8, 64, 512, 4096])
    parser.add_argument("--tails", nargs="+", choices=tuple(TAILS))
    parser.add_argument("--rewards", type=float, nargs="+")
    options = parser.parse_args()
    without_output()
    results = []
    for case in cases(options.replicas, options.tails, options.rewards):
        with tempfile.TemporaryDirectory() as folder:
            figures = {
                name: play(case, point, Path(folder) / str(place))
                for place, (name, point) in enumerate(POINTS.items())
            }
        results.append((case, figures))
        _show(results[-1:])
        if options.json:
            _write(options.json, results)
    _show(results)
    missed = judge(results)
    print("\n".join(missed) or "every bar is met")
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
