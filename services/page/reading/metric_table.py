"""The numbers of every train step, as columns."""

import math
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from services.json_lines import JsonLines

Axis = Literal["step", "time", "tokens"]
AXES: Mapping[Axis, tuple[str, ...]] = {
    "step": ("step",),
    "time": ("elapsed_s",),
    "tokens": ("tokens_sampled", "tokens_generated"),
}
"""What curves can be drawn over: columns of `metrics.jsonl`; of an older run, the last of them."""

_LARGEST = 1e300  # of a column, means can be taken


class MetricTable:
    """`metrics.jsonl` by the dotted names of its numbers, such as `trainer.entropy`.

    Grows with the file; what a line does not have is NaN there.
    """

    def __init__(self, lines: JsonLines) -> None:
        self._lines = lines
        self._forget()

    def _forget(self) -> None:
        self._columns: dict[str, array[float]] = {}
        self._rows = 0

    def look(self) -> int:
        """Read what was appended; returns the number of steps."""
        for _, line in self._lines.follow(dict, self._forget):
            self._add(line)
        return self._rows

    def _add(self, line: dict[str, Any]) -> None:
        for name, value in _numbers(line):
            column = self._columns.get(name)
            if column is None:
                column = self._columns[name] = array("d", [math.nan]) * self._rows
            column.append(value)
        self._rows += 1
        for column in self._columns.values():
            if len(column) < self._rows:
                column.append(math.nan)

    def columns(self, points: int) -> dict[str, list[float | None]]:
        """At most `points` rows of every column: means over runs of steps where there are more.

        `rewards_low` and `rewards_high` are the extremes of `reward` there.
        """
        rows = self.look()
        width = max(1, math.ceil(rows / points))
        shown = {name: thinned(column, width) for name, column in self._columns.items()}
        if "reward" in self._columns and width > 1:
            rewards = self._columns["reward"]
            shown["reward_low"] = thinned(rewards, width, min)
            shown["reward_high"] = thinned(rewards, width, max)
        for name in (name for names in AXES.values() for name in names if name in shown):
            shown[name] = thinned(self._columns[name], width, max)  # a place is no mean
        return shown

    def newest(self, rows: int) -> dict[str, list[float]]:
        """The numbers of every column in the newest rows, without its gaps."""
        self.look()
        columns = ((name, column[-rows:]) for name, column in self._columns.items())
        return {name: [one for one in part if not math.isnan(one)] for name, part in columns}

    def whole(self, names: Sequence[str]) -> "array[float] | None":
        """Every row of the first of these columns that there is; NaN where a line has no number."""
        self.look()
        return next((self._columns[name] for name in names if name in self._columns), None)

    def place(self, step: float, axis: Axis) -> float:
        """Where the end of a train step is on an axis; 0 before the first."""
        if axis == "step":
            return step
        steps, values = self.whole(AXES["step"]), self.whole(AXES[axis])
        row = bisect_right(steps, step) - 1 if steps is not None else -1
        value = values[row] if values is not None and row >= 0 else math.nan
        return 0.0 if math.isnan(value) else value

    def last(self) -> dict[str, float]:
        """The newest row."""
        if not self.look():
            return {}
        row = ((name, column[-1]) for name, column in self._columns.items())
        return {name: value for name, value in row if not math.isnan(value)}


def _numbers(line: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    for name, value in line.items():
        if isinstance(value, dict):
            yield from _numbers(value, f"{prefix}{name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield prefix + name, float(min(max(value, -_LARGEST), _LARGEST))


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def thinned(
    column: Sequence[float], width: int, choose: Callable[[list[float]], float] = _mean
) -> list[float | None]:
    """One value for every `width` rows; None where no row has a number."""
    parts = (column[at : at + width] for at in range(0, len(column), width))
    known = ([value for value in part if math.isfinite(value)] for part in parts)
    return [choose(values) if values else None for values in known]
