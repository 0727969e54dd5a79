"""The figures of a run: the same in the list of runs, side by side, in a report, in a terminal."""

import math
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Lock
from typing import Annotated, Any

import msgspec
from cachetools import LRUCache

from services.json_lines import Count, JsonLines
from services.ledger.ledger import LEDGER_FILE, reading
from services.page.reading.comparison.figure_text import MISSING, count, duration, number, percent
from services.page.reading.run_files import RunFiles, is_number, mark, state_of
from services.protocol.run.evaluation import DEFAULT_SET
from services.protocol.run.figures import FIGURES

_MOST_KEPT = 1000
_PASS = FIGURES["heldout_pass_rate"]
_STATES = {"ended": "ended early", "unfinished": "in progress, or killed"}


@dataclass(frozen=True, kw_only=True)
class RunFigures:
    """Where a run stands; None is what was not measured, and `RUN_FIGURES` says what each is."""

    run_id: str
    state: str
    model: str | None
    algorithm: str | None
    schedule: str | None
    steps: int
    steps_wanted: int | None
    elapsed_s: float
    tokens_sampled: int | None
    reward: float | None
    heldout_set: str | None
    pass_before: float | None
    pass_best: float | None
    pass_final: float | None
    best_step: int | None
    begun_at: float
    written_at: float

    @property
    def texts(self) -> dict[str, str]:
        """Each of `RUN_FIGURES` as people read it."""
        return {figure.name: figure.text_of(self) for figure in RUN_FIGURES}

    @property
    def rank(self) -> tuple[float, ...]:
        """Higher is better: by the best held-out pass rate, the newest one, the last reward."""
        rates = (self.pass_best, self.pass_final, self.reward)
        return tuple(-math.inf if rate is None else rate for rate in rates)

    def as_json(self) -> dict[str, Any]:
        """For a browser: values to sort by, texts to show."""
        return {"run_id": self.run_id, "values": asdict(self), "texts": self.texts}


@dataclass(frozen=True)
class Figure:
    """One column of a list of runs.

    Attributes:
        name: of the field of `RunFigures`.
        title: heading.
        definition: what it is, for people who point at it.
        text: of a value that is there.
        high_is_better: whether the run with the highest is marked.
    """

    name: str
    title: str
    definition: str
    text: Callable[[Any], str] = str
    high_is_better: bool = False

    def text_of(self, run: RunFigures) -> str:
        """The figure of a run as people read it."""
        value = getattr(run, self.name)
        if value is None:
            return MISSING
        if self.name == "steps" and run.steps_wanted is not None:
            return f"{count(value)} of {count(run.steps_wanted)}"
        if self.text is percent and run.heldout_set != DEFAULT_SET:
            return f"{percent(value)} of {run.heldout_set}"
        return self.text(value)

    def best_of(self, runs: list[RunFigures]) -> set[str]:
        """Ids of the runs with the best value; none where all are equal, or of different sets."""
        known = {run.run_id: getattr(run, self.name) for run in runs}
        sets = {run.heldout_set for run in runs if known[run.run_id] is not None}
        if self.text is percent and len(sets) > 1:
            return set()
        values = [value for value in known.values() if value is not None]
        if not self.high_is_better or len(set(values)) < 2:
            return set()
        return {run_id for run_id, value in known.items() if value == max(values)}


RUN_FIGURES = (
    Figure(
        "state",
        "state",
        "Of a run of a cluster, as its orchestrator says; else as far as its files tell.",
        lambda state: _STATES.get(state, state.replace("_", " ")),
    ),
    Figure("pass_best", "best pass rate", f"{_PASS} The highest at any step.", percent, True),
    Figure(
        "pass_final",
        "final pass rate",
        f"{_PASS} The newest after a train step.",
        percent,
        True,
    ),
    Figure("pass_before", "pass rate before", f"{_PASS} Before the first train step.", percent),
    Figure("reward", "reward", f"{FIGURES['reward']} Of the newest step.", number, True),
    Figure("steps", "steps", "Train steps done, of those wanted.", count),
    Figure("elapsed_s", "time", FIGURES["elapsed_s"], duration),
    Figure("tokens_sampled", "tokens sampled", FIGURES["tokens_sampled"], count),
    Figure("model", "model", "Served model that the run trains."),
    Figure("algorithm", "algorithm", "Preset of the run file, or its advantage and loss."),
    Figure("schedule", "schedule", "Preset of the run file's schedule."),
)
"""In the order in which they are shown."""


class FiguresReader:
    """Figures of many runs; a run's files are read again only after they have changed."""

    def __init__(self) -> None:
        self._turn = Lock()
        self._known: LRUCache[Path, tuple[list[list[float]], RunFigures]] = LRUCache(_MOST_KEPT)

    def of(self, path: Path, run_id: str) -> RunFigures:
        """The figures of a run; those of a folder that is not there are empty."""
        marks = RunFiles(path).marks()
        with self._turn:
            known = self._known.get(path)
            if known is None or known[0] != marks:
                known = self._known[path] = (marks, read_figures(path, run_id))
            return known[1]


def read_figures(path: Path, run_id: str) -> RunFigures:
    """Read the figures of a run from its files."""
    files = RunFiles(path)
    config, summary, last = files.config(), _mapping(files.summary()), files.last_step()
    step, steps = int(last.get("step", 0)), config.get("steps")
    rates = _PassRates.read(path)
    return RunFigures(
        run_id=run_id,
        state=state_of(step, steps, summary or None, files.error()),
        model=_text(config.get("model")),
        algorithm=_algorithm(_mapping(config.get("algorithm"))),
        schedule=_text(_mapping(config.get("schedule")).get("preset")),
        steps=step,
        steps_wanted=steps if isinstance(steps, int) else None,
        # After the last step there may have been an evaluation, which only the summary has;
        # the summary of an ending before a resumption is older than the last step.
        elapsed_s=max(last.get("elapsed_s", 0.0), _number(summary.get("wall_s"))),
        tokens_sampled=_tokens_sampled(path, last),
        reward=last.get("reward"),
        begun_at=mark(path / "config.yaml")[1],
        written_at=max(one[1] for one in files.marks()),
        **asdict(rates),
    )


@dataclass(frozen=True, kw_only=True)
class _PassRates:
    heldout_set: str | None = None
    pass_before: float | None = None
    pass_best: float | None = None
    pass_final: float | None = None
    best_step: int | None = None

    @classmethod
    def read(cls, path: Path) -> "_PassRates":
        """Those of the first held-out set, as the orchestrator shows it."""
        by_set = pass_rates(path / "evaluations.jsonl")
        name = DEFAULT_SET if DEFAULT_SET in by_set else next(iter(by_set), None)
        if name is None:
            return cls()
        rates = by_set[name]
        best = max(rates, key=lambda step: (rates[step], -step))
        final = max(rates)
        return cls(
            heldout_set=name,
            pass_before=rates.get(0),
            pass_best=rates[best],
            best_step=best,
            pass_final=rates[final] if final else None,
        )


class _Measured(msgspec.Struct):
    name: str
    step: Count
    pass_at: dict[str, Annotated[float, msgspec.Meta(ge=0, le=1)]]


def pass_rates(path: Path) -> dict[str, dict[int, float]]:
    """pass@1 of each held-out set by the train step after which it was measured."""
    lines = JsonLines(path)
    found: dict[str, dict[int, float]] = {}
    for _, line in lines.follow(_Measured):
        if "1" in line.pass_at:
            found.setdefault(line.name, {})[line.step] = line.pass_at["1"]
    return found


def _tokens_sampled(path: Path, last: Mapping[str, float]) -> int | None:
    """As the ledger has it; where it cannot be read, as of the newest step."""
    try:
        with reading(path / LEDGER_FILE) as ledger:
            return ledger.tokens_sampled()
    except sqlite3.Error:
        known = last.get("tokens_sampled")
        return None if known is None else int(known)


def _algorithm(config: Mapping[str, Any]) -> str | None:
    preset, loss = _text(config.get("preset")), _text(config.get("loss"))
    advantage = _text(config.get("advantage"))
    if preset or loss in (None, "clip"):
        return preset or advantage
    return f"{advantage}, {loss}"


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str | None:
    return str(value) if value else None


def _number(value: object) -> float:
    return float(value) if is_number(value) else 0.0
