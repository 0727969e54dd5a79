"""Where learning happens: rewards and pass rates by task, and by what tasks have in common."""

from array import array
from collections import Counter
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from services.json_lines import Count, JsonLines
from services.page.reading.spans import plain
from services.protocol.strict import StrictModel

By = Literal["kind", "difficulty", "source", "first"]
_PASSED = 1.0
_OFTEN = 0.5
_MOST_LABELS = 24
_MOST_TASKS = 100
_BANDS = ("never", "up to 25%", "up to 75%", "more than 75%")
Floats = NDArray[np.float64]
Places = NDArray[np.int64]


class _Line(msgspec.Struct):
    """The fields of a line of `groups.jsonl` that say how its task was answered."""

    group: Count
    step: Count
    task_id: str
    rewards: list[float]
    kind: str = ""
    difficulty: str = ""
    source: str = ""


class TasksQuery(StrictModel, use_attribute_docstrings=True):
    """By what tasks are summed up."""

    by: By = "kind"
    """Their kind, difficulty or source, or `first`: how often they were solved at first."""

    points: int = Field(default=60, ge=2, le=500)
    """Most points of a curve: where there are more steps, a point is the mean over several."""


class TaskProgress:
    """Every graded group of `groups.jsonl` as a few numbers; grows with the file.

    An answer passes with a reward of 1 or more, as in an evaluation. Of a group that was done
    again, after a rollback, the newest line counts.
    """

    def __init__(self, lines: JsonLines) -> None:
        self._lines = lines
        self._forget()

    def _forget(self) -> None:
        self._rows: dict[int, int] = {}
        self._task, self._step = array("q"), array("q")
        self._reward, self._rate = array("d"), array("d")
        self._tasks: dict[str, int] = {}
        self._labels: dict[str, list[str]] = {"kind": [], "difficulty": [], "source": []}

    def look(self) -> int:
        """Read what was appended; returns the number of groups."""
        for _, line in self._lines.follow(_Line, self._forget):
            if line.rewards:
                self._add(line)
        return len(self._rows)

    def _add(self, line: _Line) -> None:
        task = self._tasks.setdefault(line.task_id, len(self._tasks))
        if task == len(self._labels["kind"]):
            for name, labels in self._labels.items():
                labels.append(getattr(line, name))
        reward = sum(line.rewards) / len(line.rewards)
        rate = sum(one >= _PASSED for one in line.rewards) / len(line.rewards)
        columns: tuple[Any, ...] = (self._task, self._step, self._reward, self._rate)
        row = self._rows.setdefault(line.group, len(self._task))
        for column, value in zip(columns, (task, line.step, reward, rate), strict=True):
            if row == len(column):
                column.append(value)
            else:
                column[row] = value

    def summary(self, query: TasksQuery) -> dict[str, Any]:
        """Curves and figures by label, and tasks by what became of them."""
        if not self.look():
            return {"by": query.by, "available": [], "labels": [], "steps": [], "outcomes": {}}
        task, rate = np.frombuffer(self._task, np.int64), np.frombuffer(self._rate)
        per_task = _PerTask(task, rate, len(self._tasks))
        names, label = self._labelled(query.by, per_task)
        steps, curves = self._curves(label[task], len(names), query.points)
        early, late = self._quarters()
        rows = []
        for place, name in enumerate(names):
            mine = label == place
            groups = label[task] == place
            rows.append(
                {
                    "label": name,
                    "tasks": int(mine.sum()),
                    "groups": int(per_task.groups[mine].sum()),
                    "early": _mean(rate[groups & early]),
                    "late": _mean(rate[groups & late]),
                    **{figure: _holed(values[place]) for figure, values in curves.items()},
                }
            )
        available = [name for name, labels in self._labels.items() if any(labels)] + ["first"]
        outcomes = self._outcomes(per_task)
        both = {"by": query.by, "available": available}
        return both | {"labels": rows, "steps": plain(steps), "outcomes": outcomes}

    def _quarters(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Which groups are of the first, and which of the last quarter of the train steps."""
        step = np.frombuffer(self._step, np.int64)
        low, high = int(step.min()), int(step.max())
        quarter = max(1, (high - low + 1) // 4)
        return step < low + quarter, step > high - quarter

    def _labelled(self, by: By, per_task: "_PerTask") -> tuple[list[str], Places]:
        """The labels in their order, and the place of each task's label."""
        if by == "first":
            bands = np.searchsorted([0.0, 0.25, 0.75], per_task.first)
            used = sorted(set(bands.tolist()))
            return [_BANDS[band] for band in used], np.searchsorted(used, bands)
        texts = [text or "not given" for text in self._labels[by]]
        names = sorted(set(texts), key=_natural)
        if len(names) > _MOST_LABELS:  # the largest ones, and the others together
            often = {name for name, _ in Counter(texts).most_common(_MOST_LABELS - 1)}
            texts = [text if text in often else "others" for text in texts]
            names = [*sorted(often, key=_natural), "others"]
        places = {name: place for place, name in enumerate(names)}
        return names, np.array([places[text] for text in texts], np.int64)

    def _curves(self, label: Places, labels: int, points: int) -> tuple[Floats, dict[str, Floats]]:
        """Mean reward and pass rate of each label over equal parts of the train steps."""
        step = np.frombuffer(self._step, np.int64)
        low, high = int(step.min()), int(step.max())
        width = max(1, -(-(high - low + 1) // points))
        parts = (high - low) // width + 1
        place = label * parts + (step - low) // width
        count = np.bincount(place, minlength=labels * parts)
        curves = {}
        for name, column in (("reward", self._reward), ("rate", self._rate)):
            sums = np.bincount(place, np.frombuffer(column), labels * parts)
            with np.errstate(invalid="ignore"):
                curves[name] = (sums / count).reshape(labels, parts)
        ends = np.minimum(high, low + width * np.arange(1, parts + 1) - 1)
        return ends.astype(np.float64), curves

    def _outcomes(self, per_task: "_PerTask") -> dict[str, Any]:
        names = list(self._tasks)
        found = {}
        for outcome, chosen in per_task.outcomes().items():
            places = np.nonzero(chosen)[0]
            often = places[np.argsort(-per_task.groups[places], kind="stable")][:_MOST_TASKS]
            tasks = [{"task_id": names[at], **per_task.row(int(at))} for at in often]
            found[outcome] = {"count": len(places), "tasks": tasks}
        return found | {"all": {"count": len(names), "tasks": []}}


class _PerTask:
    """Pass rates of each task's first, newest, best and worst group."""

    def __init__(self, task: Places, rate: Floats, tasks: int) -> None:
        self.groups = np.bincount(task, minlength=tasks)
        _, first = np.unique(task, return_index=True)
        _, newest = np.unique(task[::-1], return_index=True)
        self.first, self.newest = rate[first], rate[::-1][newest]
        self.best, self.worst = np.zeros(tasks), np.ones(tasks)
        np.maximum.at(self.best, task, rate)
        np.minimum.at(self.worst, task, rate)

    def outcomes(self) -> dict[str, NDArray[np.bool_]]:
        """Which tasks were never solved, always, solved and forgotten, or learned."""
        return {
            "never": self.best == 0,
            "always": self.worst == 1,
            "forgotten": (self.best >= _OFTEN) & (self.newest == 0),
            "learned": (self.first == 0) & (self.newest >= _OFTEN),
        }

    def row(self, task: int) -> dict[str, float]:
        """The figures of one task."""
        columns = {"first": self.first, "best": self.best, "newest": self.newest}
        known = {name: float(column[task]) for name, column in columns.items()}
        return {"groups": int(self.groups[task])} | known


def _mean(values: Floats) -> float | None:
    return float(values.mean()) if len(values) else None


def _holed(values: Floats) -> list[float | None]:
    return [None if np.isnan(value) else round(float(value), 4) for value in values]


def _natural(text: str) -> tuple[bool, float, str]:
    """Numbers by size, before texts."""
    try:
        return False, float(text), text
    except ValueError:
        return True, 0.0, text
