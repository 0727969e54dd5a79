"""Several runs side by side."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from string import ascii_uppercase
from typing import Any

from services.page.reading.comparison.changed_keys import ChangedKey, changed_keys
from services.page.reading.comparison.curves import CURVES, Curve, Line, pass_rate_curve
from services.page.reading.comparison.run_figures import RUN_FIGURES, RunFigures
from services.page.reading.metric_table import Axis
from services.page.reading.run_folder import RunFolder

MOST_COMPARED = 24
"""Runs that are shown side by side: as many as people can tell apart, and letters name."""


@dataclass(frozen=True)
class Chart:
    """Curves of several runs over each other.

    Attributes:
        curve: what is drawn.
        dots: whether its points were measured now and then, and not at every train step.
        lines: by the letter of the run.
    """

    curve: Curve
    dots: bool
    lines: dict[str, Line]


@dataclass(frozen=True)
class ComparedRun:
    """One of them.

    Attributes:
        letter: its short name in charts and tables: A is the best.
    """

    letter: str
    folder: RunFolder
    figures: RunFigures


class Comparison:
    """Runs, the best first: by held-out pass rate, and where none was measured by reward.

    Args:
        runs: each with its figures.
    """

    def __init__(self, runs: Sequence[tuple[RunFolder, RunFigures]]) -> None:
        ranked = sorted(runs, key=lambda run: run[1].rank, reverse=True)
        letters = ascii_uppercase[: len(ranked)]
        self.runs = [ComparedRun(letter, *run) for letter, run in zip(letters, ranked, strict=True)]

    @property
    def best(self) -> dict[str, set[str]]:
        """Ids of the runs with the best value of each figure; empty where all are equal."""
        figures = [run.figures for run in self.runs]
        return {figure.name: figure.best_of(figures) for figure in RUN_FIGURES}

    def changed(self) -> list[ChangedKey]:
        """Keys of the run files that differ, with values in the order of the runs."""
        return changed_keys([run.folder.files.config() for run in self.runs])

    def table(self) -> dict[str, Any]:
        """Runs, what their figures mean, and changed keys, for a browser."""
        best = self.best
        return {
            "runs": [
                run.figures.as_json()
                | {
                    "letter": run.letter,
                    "best": [name for name, ids in best.items() if run.figures.run_id in ids],
                }
                for run in self.runs
            ],
            "figures": figure_heads(),
            "changed": [asdict(one) for one in self.changed()],
        }

    def charts(self, axis: Axis, smoothing: float, points: int) -> list[Chart]:
        """Held-out pass rates, then every curve that any of the runs has."""
        rates = {run.letter: run.folder.pass_rate_lines(axis) for run in self.runs}
        sets = dict.fromkeys(name for one in rates.values() for name in one)
        charts = [
            Chart(
                pass_rate_curve(name),
                True,
                {a: one[name] for a, one in rates.items() if name in one},
            )
            for name in sets
        ]
        lines = {run.letter: run.folder.lines(axis, smoothing, points) for run in self.runs}
        for curve in CURVES:
            known = {a: one[curve.column] for a, one in lines.items() if curve.column in one}
            charts += [Chart(curve, False, known)] if known else []
        return charts


def figure_heads() -> list[dict[str, str]]:
    """Heading and definition of every figure."""
    return [{"name": f.name, "title": f.title, "definition": f.definition} for f in RUN_FIGURES]
