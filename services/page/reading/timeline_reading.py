"""A run's timeline at the resolution of a screen."""

from array import array
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from services.json_lines import Count, JsonLines

LATEST = 1e10
"""Seconds since 1970: beyond it, floats are too coarse for the parts of a screen."""

_NARROWEST_S = 0.01
_MOST_LANES = 96
_MOST_SPANS = 1500
_MOST_MARKS = 200
_SLOTS = ("sampling", "scoring", "ready", "training", "updating", "free")
_CAUSES = {
    "updating": "weights",
    "training": "trainer",
    "scoring": "score",
    "ready": "batch",
    "free": "admission",
}
Floats = NDArray[np.float64]


_Seconds = Annotated[float, msgspec.Meta(ge=0, le=LATEST)]


class _Span(msgspec.Struct):
    lane: str
    kind: str
    start: _Seconds
    end: _Seconds
    cause: str = ""
    answers: Count = 1
    paused_s: _Seconds = 0.0
    step: Count | None = None
    sampling: Count = 0
    scoring: Count = 0
    ready: Count = 0
    training: Count = 0
    updating: Count = 0
    free: Count = 0


class _Kind:
    """All spans of one kind on one lane."""

    def __init__(self) -> None:
        self.start, self.end = array("d"), array("d")
        self.weight = array("d")
        self.source = array("q")

    def add(self, span: _Span, source: int) -> None:
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
        done = _ramp(np.frombuffer(self.start), weight, edges)
        done -= _ramp(np.frombuffer(self.end), weight, edges)
        return np.maximum(0.0, np.diff(done) / np.diff(edges))

    def within(self, since: float, until: float) -> list[int]:
        """Places of the lines of spans that touch a time, a bounded number, newest last."""
        start, end = np.frombuffer(self.start), np.frombuffer(self.end)
        places = np.nonzero((start <= until) & (end >= since))[0][-_MOST_SPANS:]
        source = np.frombuffer(self.source, dtype=np.int64)
        return [int(source[place]) for place in places]


def _ramp(times: Floats, weight: Floats, at: Floats) -> Floats:
    """Sum of `weight * (at - time)` over the times before each `at`."""
    order = np.argsort(times, kind="stable")
    times, weight = times[order], weight[order]
    count = np.concatenate(([0.0], np.cumsum(weight)))
    moment = np.concatenate(([0.0], np.cumsum(weight * (times - at[0]))))
    place = np.searchsorted(times, at)
    return count[place] * (at - at[0]) - moment[place]


class TimelineReading:
    """Both files of a timeline, oldest first; grows with them.

    Args:
        older: the file that was full.
        newer: the file that grows.
    """

    def __init__(self, older: JsonLines, newer: JsonLines) -> None:
        self._files = (older, newer)
        self._forget()

    def _forget(self) -> None:
        self._lives = [file.lives for file in self._files]
        self._read = [0, 0]
        self._lanes: dict[str, dict[str, _Kind]] = {}
        self._steps: list[tuple[float, int]] = []
        self._slots_at = array("d")
        self._slots = [array("d") for _ in _SLOTS]

    def look(self) -> None:
        """Read what was appended."""
        for file in self._files:
            file.look()
        if [file.lives for file in self._files] != self._lives:
            self._forget()
        for which, file in enumerate(self._files):
            for place, span in file.since(self._read[which], _Span):
                if span is not None:
                    self._add(span, 2 * place + which)
                self._read[which] = place + 1

    def _add(self, span: _Span, source: int) -> None:
        if span.kind == "slots":
            self._slots_at.append(span.start)
            for column, name in zip(self._slots, _SLOTS, strict=True):
                column.append(getattr(span, name))
            return
        if span.kind == "train" and span.step is not None:
            self._steps.append((span.end, span.step))
        kind = f"wait: {span.cause}" if span.kind == "wait" else span.kind
        kinds = self._lanes.setdefault(span.lane, {})
        kinds.setdefault(kind, _Kind()).add(span, source)
        if span.paused_s > 0:  # a push ends with its commit, and that with the pause
            pause = msgspec.structs.replace(span, start=span.end - span.paused_s)
            kinds.setdefault("pause", _Kind()).add(pause, source)

    def window(self, since: float | None, until: float | None, bins: int) -> dict[str, Any]:
        """The work of each lane in `bins` equal parts of a time; None: from, or to, the end.

        `busy` are mean numbers at work by kind, answers where a span is of several.
        """
        self.look()
        first, last = self._bounds()
        begin = first if since is None else since
        end = max(last if until is None else until, begin + _NARROWEST_S)
        edges = np.linspace(begin, end, bins + 1)
        names = sorted(self._lanes, key=_order)
        lanes = []
        for name in names[:_MOST_LANES]:
            busy = {kind: one.busy(edges) for kind, one in self._lanes[name].items()}
            seen = {kind: _plain(values) for kind, values in busy.items() if values.any()}
            lanes.append({"lane": name, "busy": seen})
        return {
            "first": first,
            "last": last,
            "begin": begin,
            "end": end,
            "lanes": lanes,
            "lanes_left_out": max(0, len(names) - _MOST_LANES),
            "slots": self._slots_in(edges),
            "steps": self._steps_in(begin, end),
        }

    def at(self, lane: str, moment: float, slack: float) -> list[dict[str, Any]]:
        """The spans of a lane at a moment, whole."""
        self.look()
        found = []
        for one in self._lanes.get(lane, {}).values():
            for source in one.within(moment - slack, moment + slack)[-20:]:
                line = self._files[source % 2].one(source // 2, dict)
                found += [line] if line is not None else []
        return found

    def pushes(self, limit: int) -> list[dict[str, Any]]:
        """The newest pushes, newest first."""
        self.look()
        kinds = [kinds["push"] for kinds in self._lanes.values() if "push" in kinds]
        ends = [
            (end, source) for one in kinds for end, source in zip(one.end, one.source, strict=True)
        ]
        lines = (
            self._files[source % 2].one(source // 2, dict) for _, source in sorted(ends)[-limit:]
        )
        return [line for line in lines if line is not None][::-1]

    def _bounds(self) -> tuple[float, float]:
        kinds = [one for kinds in self._lanes.values() for one in kinds.values()]
        starts = [np.frombuffer(one.start).min() for one in kinds] + list(self._slots_at[:1])
        ends = [np.frombuffer(one.end).max() for one in kinds] + list(self._slots_at[-1:])
        return float(min(starts, default=0.0)), float(max(ends, default=0.0))

    def _slots_in(self, edges: Floats) -> dict[str, Any] | None:
        """Use of slots at the beginning of each part, and why slots did not sample."""
        if not self._slots_at:
            return None
        place = np.searchsorted(np.frombuffer(self._slots_at), edges[1:]) - 1
        known = place >= 0
        columns = {
            name: np.where(known, np.frombuffer(column)[place], 0.0)
            for name, column in zip(_SLOTS, self._slots, strict=True)
        }
        others = np.stack([columns[name] for name in _CAUSES])
        causes = list(_CAUSES.values())
        why = [causes[i] if some else "" for i, some in zip(others.argmax(0), known, strict=True)]
        return {"columns": {name: _plain(values) for name, values in columns.items()}, "why": why}

    def _steps_in(self, begin: float, end: float) -> list[tuple[float, int]]:
        inside = [mark for mark in self._steps if begin <= mark[0] <= end]
        return inside[:: max(1, -(-len(inside) // _MOST_MARKS))]


def _plain(values: Floats) -> list[float]:
    rounded: list[float] = np.round(values, 3).tolist()
    return rounded


def _order(lane: str) -> tuple[int, str, int]:
    """The loop's own order: replicas, sandboxes, the trainer and its ranks, evaluations."""
    kind, _, name = lane.partition(" ")
    place = ("replica", "sandbox", "trainer", "evaluation")
    number = int(name) if name.isdigit() else -1
    return (place.index(kind) if kind in place else len(place), "" if number >= 0 else name, number)
