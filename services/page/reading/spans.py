"""Spans of one kind on one lane of a timeline, and how busy they keep it."""

from array import array
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from services.json_lines import Count

LATEST = 1e10
"""Seconds since 1970: beyond it, floats are too coarse for the parts of a screen."""

_MOST_FOUND = 1500
Floats = NDArray[np.float64]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=LATEST)]


class Span(msgspec.Struct):
    """A line of the timeline; fields of one kind are 0 or empty in the others."""

    lane: str
    kind: str
    start: Seconds
    end: Seconds
    cause: str = ""
    answers: Count = 1
    paused_s: Seconds = 0.0
    step: Count | None = None
    sampling: Count = 0
    scoring: Count = 0
    ready: Count = 0
    training: Count = 0
    updating: Count = 0
    free: Count = 0


class Spans:
    """All spans of one kind on one lane."""

    def __init__(self) -> None:
        self.start, self.end = array("d"), array("d")
        self.weight = array("d")
        self.source = array("q")

    def add(self, span: Span, source: int) -> None:
        """Append one; `source` finds its line again."""
        self.start.append(span.start)
        self.end.append(max(span.start, span.end))
        self.weight.append(span.answers)
        self.source.append(source)

    def busy(self, edges: Floats) -> Floats:
        """Mean number at work between edges.

        With F(t) the work done up to t, it is the difference of F over the width; F is a sum
        over the spans that began before t, less one over those that ended.
        """
        weight = np.frombuffer(self.weight)
        return _mean(np.frombuffer(self.start), np.frombuffer(self.end), weight, edges)

    def share(self, edges: Floats) -> Floats:
        """Share of the time between edges in which at least one is at work."""
        order = np.argsort(np.frombuffer(self.start), kind="stable")
        start = np.frombuffer(self.start)[order]
        end = np.maximum.accumulate(np.frombuffer(self.end)[order])
        is_first = np.concatenate(([True], start[1:] > end[:-1]))
        is_last = np.concatenate((is_first[1:], [True]))
        start, end = start[is_first], end[is_last]
        return np.minimum(1.0, _mean(start, end, np.ones_like(start), edges))

    def between(self, since: float, until: float) -> NDArray[np.intp]:
        """Places of the spans that touch a time."""
        start, end = np.frombuffer(self.start), np.frombuffer(self.end)
        return np.nonzero((start <= until) & (end >= since))[0]

    def rows(self, places: NDArray[np.intp]) -> list[list[float]]:
        """Start, end and number of answers of each."""
        columns = (np.frombuffer(one)[places] for one in (self.start, self.end, self.weight))
        rows: list[list[float]] = np.column_stack(list(columns)).tolist()
        return rows

    def sources(self, since: float, until: float) -> list[int]:
        """The lines of spans that touch a time, a bounded number, newest last."""
        source = np.frombuffer(self.source, dtype=np.int64)
        return [int(source[place]) for place in self.between(since, until)[-_MOST_FOUND:]]


def _mean(start: Floats, end: Floats, weight: Floats, edges: Floats) -> Floats:
    done = _ramp(start, weight, edges) - _ramp(end, weight, edges)
    return np.maximum(0.0, np.diff(done) / np.diff(edges))


def _ramp(times: Floats, weight: Floats, at: Floats) -> Floats:
    """Sum of `weight * (at - time)` over the times before each `at`."""
    order = np.argsort(times, kind="stable")
    times, weight = times[order], weight[order]
    count = np.concatenate(([0.0], np.cumsum(weight)))
    moment = np.concatenate(([0.0], np.cumsum(weight * (times - at[0]))))
    place = np.searchsorted(times, at)
    return count[place] * (at - at[0]) - moment[place]


def plain(values: Any) -> list[float]:
    """An array for JSON."""
    rounded: list[float] = np.round(values, 3).tolist()
    return rounded
