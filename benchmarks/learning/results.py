"""The results of `benchmarks.learning`, in one file that grows."""

import json
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, TypeAdapter

from benchmarks.learning.matrix import Configuration
from benchmarks.report import BASELINES
from services.orchestrator.run_folder.run_directory import RunDirectory
from services.protocol.run.orchestrator import RunState, RunStatus

RESULTS = BASELINES / "learning.json"


class Outcome(BaseModel):
    """One run.

    Attributes:
        name: of its configuration.
        overrides: what it changed in the demo's run file.
        state: how it ended.
        detail: the same in words.
        heldout: train step, and the greedy pass rate on held-out tasks after it. Beside
            training it may be measured under slightly newer weights; the first and the last
            are not.
        reward: mean reward of the batch of each train step.
        staleness_mean: of the groups of each batch.
        staleness_max: the same.
        diagnostics: of each train step, by name; see docs/diagnostics.md.
        wall_s: of the run, on a machine that may have been busy.
        failures: failed sample groups by reason.
    """

    name: str
    seed: int
    steps: int
    overrides: dict[str, Any]
    state: RunState
    detail: str
    heldout: list[tuple[int, float]]
    reward: list[float]
    staleness_mean: list[float]
    staleness_max: list[int]
    diagnostics: dict[str, list[float | None]] = {}
    wall_s: float
    failures: dict[str, int]

    @property
    def before(self) -> float:
        """Pass rate of the initial model."""
        return self.heldout[0][1]

    @property
    def after(self) -> float:
        """Pass rate at the end; of a run that collapsed the last that was measured."""
        return self.heldout[-1][1]

    @property
    def collapsed(self) -> bool:
        """The policy came to a place where no answer passes, and the run gave up."""
        return self.state == RunState.FAILED and self.detail.startswith("nothing to learn from")

    @property
    def counts(self) -> bool:
        """It says something about learning: it was not broken off by anything else."""
        return self.state == RunState.FINISHED or self.collapsed

    @property
    def summary(self) -> str:
        """One line for people."""
        head = f"== {self.name} seed {self.seed}: {self.state}"
        if not self.reward or not self.heldout:
            return f"{head}: {self.detail}"
        return (
            f"{head}, held-out {self.before:.2f} -> {self.after:.2f}, reward "
            f"{self.reward[-1]:.2f}, staleness {max(self.staleness_max)}, {self.wall_s:.0f} s"
        )


class Results:
    """The file; every change is written at once, whole or not at all."""

    def __init__(self, path: Path, outcomes: list[Outcome]) -> None:
        self._path = path
        self.outcomes = outcomes

    @classmethod
    def read(cls, path: Path) -> Self:
        """An absent file is an empty one."""
        text = path.read_text(encoding="utf-8") if path.exists() else "[]"
        return cls(path, TypeAdapter(list[Outcome]).validate_json(text))

    def of(self, name: str) -> list[Outcome]:
        """All seeds of a configuration that count, in their order."""
        return [one for one in self.outcomes if one.name == name and one.counts]

    def has(self, one: Configuration, *, seed: int, steps: int) -> bool:
        """Whether this very run is there and counts."""
        return any(
            (had.name, had.seed, had.steps) == (one.name, seed, steps)
            and had.overrides == one.overrides
            and had.counts
            for had in self.outcomes
        )

    def add(self, outcome: Outcome) -> None:
        """Put it in the place of an earlier one of the same configuration and seed."""
        key = (outcome.name, outcome.seed)
        kept = [had for had in self.outcomes if (had.name, had.seed) != key]
        self.outcomes = sorted([*kept, outcome], key=lambda one: (one.name, one.seed))
        lines = [json.dumps(one.model_dump(mode="json")) for one in self.outcomes]
        beside = self._path.with_suffix(".new")
        beside.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")
        beside.replace(self._path)


DIAGNOSTICS = ("entropy", "effective_sample_size", "kl_behaviour", "mismatch_max")


def outcome(one: Configuration, status: RunStatus, *, seed: int, steps: int) -> Outcome:
    """Read the directory of a run that has ended."""
    directory = RunDirectory(status.run_dir)
    lines = directory.metrics.lines()
    evaluations = sorted(directory.evaluations(), key=lambda evaluation: evaluation.step)
    return Outcome(
        name=one.name,
        seed=seed,
        steps=steps,
        overrides=dict(one.overrides),
        state=status.state,
        detail=status.detail,
        heldout=[(it.step, it.pass_rate) for it in evaluations if it.pass_rate is not None],
        reward=[round(line["reward"], 4) for line in lines],
        staleness_mean=[round(line["staleness_mean"], 3) for line in lines],
        staleness_max=[line["staleness_max"] for line in lines],
        diagnostics={
            name: [_rounded(line["trainer"].get(name)) for line in lines]
            for name in DIAGNOSTICS
            if lines and name in lines[0]["trainer"]
        },
        wall_s=round(status.elapsed_s, 1),
        failures=status.failures,
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")
