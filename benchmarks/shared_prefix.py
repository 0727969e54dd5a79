"""Train steps with shared prefixes computed once, beside the same steps row by row.

    python -m benchmarks.shared_prefix [--cases agent] [--rounds 5] [--json]

One rank of Millrace with a random Qwen3, and whole train steps: the plan, forward and backward
passes, the update, diagnostics and the snapshot. Both ways have the same learner and batch and
differ in the plan alone, take turns, and are compared within a round; the first round is dropped.
Bars are of CPU seconds, which other programs on the machine disturb less: a rank has one thread.
What could be saved at best is counted here from the token ids: a beginning of a row that is a
beginning of another one as well needs computing once. `--shrink 16` makes all lengths 16 times
smaller, to see that it works.
"""

import os
import random
import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.models import make_model
from benchmarks.random_batch import RUN, run_start, scored
from benchmarks.report import Bar, by_name, in_turn, machine, options_of, ratio, show, write
from benchmarks.train_step.batch import Watch
from services.protocol.train_batch import BatchBuilder, ScoredTrajectory, TrainBatch, TrainGroup
from services.trainer.config import TrainerConfig

VOCABULARY = 2048
SHAPE = (128, 384, 2, 2, 1, 32)
MICRO_BATCH_TOKENS = 16_384
WAYS = ("rows", "tree")
TOKENS_BAR, TIME_BAR, SLOWER_BAR = 0.8, 0.6, 1.03
WORTH = 0.2
"""Least saving of tokens, as a share of all, for which the bar of time counts: below it only that
a step is not slower."""

Row = tuple[list[int], list[int]]


class Cases:
    """Rows of the three cases, a group each; lengths divided by `shrink`."""

    def __init__(self, shrink: int) -> None:
        self._shrink, self._draw = shrink, random.Random(0)

    def _tokens(self, count: int) -> list[int]:
        length = max(1, count // self._shrink)
        return [self._draw.randrange(2, VOCABULARY) for _ in range(length)]

    def _answers(self, prompt: int, answer: int) -> list[Row]:
        shared = self._tokens(prompt)
        return [(shared, self._tokens(answer)) for _ in range(16)]

    def prompt_heavy(self) -> list[list[Row]]:
        """A prompt of 8k tokens and 16 answers of 256."""
        return [self._answers(8192, 256)]

    def agent(self) -> list[list[Row]]:
        """Four episodes of a task, each with 12 turns, whose template forgets thoughts."""
        prompt, rows = self._tokens(1000), []
        for _ in range(4):
            history = prompt
            for _ in range(12):
                said = self._tokens(60)
                rows.append((history, self._tokens(200) + said))
                history = history + said + self._tokens(150)
        return [rows]

    def answer_heavy(self) -> list[list[Row]]:
        """Short prompts, and 16 answers of 512 tokens to each."""
        return [self._answers(64, 512) for _ in range(4)]


def batch_of(groups: list[list[Row]], step: int) -> TrainBatch:
    """The rows as a batch, with random rewards."""
    builder, draw = BatchBuilder(run_id=RUN, step=step), random.Random(step)
    for number, rows in enumerate(groups):
        members: tuple[ScoredTrajectory, ...] = tuple(
            scored(prompt, answer, draw.random(), logprob=-7.6) for prompt, answer in rows
        )
        builder.add(TrainGroup(group_id=number, trajectories=members))
    return builder.batch()


def best_saving(groups: list[list[Row]]) -> float:
    """Share of the rows' tokens that need not be computed: the distinct beginnings are."""
    distinct, tokens = set[int](), 0
    for rows in groups:
        for prompt, answer in rows:
            beginning = 0
            for token in prompt + answer:
                beginning = hash((beginning, token))
                distinct.add(beginning)
            tokens += len(prompt) + len(answer)
    return 1 - len(distinct) / tokens


class Steps:
    """Train steps of a rank, in both ways."""

    def __init__(self, folder: Path, threads: int) -> None:
        from services.trainer.rank.learner import Learner
        from services.trainer.rank.process_group import join_group, open_store

        config = TrainerConfig(
            model=str(make_model(folder, SHAPE, vocabulary=VOCABULARY, positions=16_384)),
            world_size=1,
            threads_per_rank=threads,
            micro_batch_tokens=MICRO_BATCH_TOKENS,
            canary_sequences=0,
        )
        join_group(config, 0, open_store("127.0.0.1"), "127.0.0.1")
        self._learner, self._step = Learner(config), 0
        self._run = run_start(folder, learning_rate=1e-6)
        self._learner.start_run(self._run, 0)

    def take(self, groups: list[list[Row]], way: str) -> dict[str, float]:
        """Seconds of one train step, and the share of tokens that it saved."""
        self._step += 1
        batch, model = batch_of(groups, self._step), self._learner.model
        model = replace(model, limits=replace(model.limits, shares=way == "tree"))
        watch = Watch()
        plan = model.plan(batch, self._run)
        self._learner.train(plan.part(0), self._step - 1, self._step)
        return watch.read() | {"saved": plan.shared_fraction()}


def measure(steps: Steps, groups: list[list[Row]], rounds: int) -> dict[str, Any]:
    """Figures of one case."""
    found = [
        {way: steps.take(groups, way) for way in in_turn(WAYS, round_)}
        for round_ in range(rounds + 1)
    ][1:]
    seconds = {
        clock: by_name([{way: one[way][clock] for way in WAYS} for one in found])
        for clock in ("wall", "cpu")
    }
    return {
        "tokens": sum(len(prompt) + len(answer) for rows in groups for prompt, answer in rows),
        "best": best_saving(groups),
        "saved": found[0]["tree"]["saved"],
        "seconds": seconds,
        "time": {clock: ratio(one["tree"], one["rows"]) for clock, one in seconds.items()},
    }


def bars_of(name: str, case: dict[str, Any]) -> list[Bar]:
    """What must hold of a case."""
    best, time = case["best"], case["time"]["cpu"]
    bars = [
        Bar(name=f"{name}: tokens, of the best", found=case["saved"] / best, limit=TOKENS_BAR),
        Bar(name=f"{name}: time over rows'", found=time, limit=SLOWER_BAR, at_most=True),
    ]
    if best >= WORTH:
        saved = (1 - time) / best
        bars.append(Bar(name=f"{name}: time, of the best", found=saved, limit=TIME_BAR))
    return bars


def main() -> None:
    """Measure, print, and write the figures if asked."""
    names = ["prompt_heavy", "agent", "answer_heavy"]
    options = options_of(
        __doc__,
        "shared_prefix",
        cases=(names, "to measure"),
        rounds=5,
        threads=(1, "of the rank"),
        shrink=(1, "all lengths by this factor"),
    ).parse_args()
    os.environ["THP_MEM_ALLOC_ENABLE"] = "1"  # as ranks have it
    with tempfile.TemporaryDirectory() as folder:
        steps, cases = Steps(Path(folder), options.threads), Cases(options.shrink)
        results = {
            name: measure(steps, getattr(cases, name)(), options.rounds) for name in options.cases
        }
    bars = [bar for name, case in results.items() for bar in bars_of(name, case)]
    show(
        ("case", "tokens", "saved", "at best", "rows CPU s", "tree CPU s", "wall time"),
        (
            [
                name,
                f"{case['tokens']:,}",
                f"{case['saved']:.1%}",
                f"{case['best']:.1%}",
                *(f"{median(case['seconds']['cpu'][way]):.2f}" for way in WAYS),
                f"{case['time']['wall']:.3f}",
            ]
            for name, case in results.items()
        ),
    )
    print(*bars, sep="\n")
    found = [{"name": bar.name, "found": bar.found, "bar": bar.limit} for bar in bars]
    write(options.json, {**machine(), "cases": results, "bars": found})


if __name__ == "__main__":
    main()
