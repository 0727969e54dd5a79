"""A run's timeline at the resolution of a screen."""

from typing import Any

import msgspec
import numpy as np

from services.json_lines import JsonLines
from services.page.reading.slot_uses import SlotUses
from services.page.reading.spans import Floats, Span, Spans, plain
from services.page.reading.waiting import CAUSES, waited_most

_NARROWEST_S = 0.01
_MOST_LANES = 96
_MOST_SHOWN = 6000
_MOST_MARKS = 200
_NARROWEST_STEP = 8
"""Parts of the time: where train steps are shorter, a part covers two steps and not a piece of
one, so that the alternation of work and waits does not look like a barcode."""
_FEWEST = 12
_WAIT = "wait: "


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
        self._lanes: dict[str, dict[str, Spans]] = {}
        self._steps: list[tuple[float, int]] = []
        self._slots = SlotUses()

    def look(self) -> None:
        """Read what was appended."""
        for file in self._files:
            file.look()
        if [file.lives for file in self._files] != self._lives:
            self._forget()
        for which, file in enumerate(self._files):
            for place, span in file.since(self._read[which], Span):
                if span is not None:
                    self._add(span, 2 * place + which)
                self._read[which] = place + 1

    def _add(self, span: Span, source: int) -> None:
        if span.kind == "slots":
            self._slots.add(span)
            return
        if span.kind == "train" and span.step is not None:
            self._steps.append((span.end, span.step))
        kind = f"{_WAIT}{span.cause}" if span.kind == "wait" else span.kind
        kinds = self._lanes.setdefault(span.lane, {})
        kinds.setdefault(kind, Spans()).add(span, source)
        if span.paused_s > 0:  # a push ends with its commit, and that with the pause
            pause = msgspec.structs.replace(span, start=span.end - span.paused_s)
            kinds.setdefault("pause", Spans()).add(pause, source)

    def window(self, since: float | None, until: float | None, bins: int) -> dict[str, Any]:
        """The work of each lane between two times; None: from, or to, the end.

        It comes as means over `bins` equal parts, or over fewer where train steps are short.
        `busy` are mean numbers at work by kind, answers where a span is of several; `share` is
        the part of the time in which there is any. A lane with few spans has these as well.
        """
        self.look()
        first, last = self._bounds()
        begin = first if since is None else since
        end = max(last if until is None else until, begin + _NARROWEST_S)
        steps = [mark for mark in self._steps if begin <= mark[0] <= end]
        edges = np.linspace(begin, end, _parts(bins, len(steps)) + 1)
        names = sorted(self._lanes, key=_order)
        shown = names[:_MOST_LANES]
        most = min(2 * bins, _MOST_SHOWN // max(1, len(shown)))
        slots, waits = self._slots.between(edges), self._waits(edges)
        at_work = self._trainer_works(edges)
        idle = {
            "trainer": {cause: float(values.mean()) for cause, values in waits.items()},
            "rollout": {cause: float(np.mean(v)) for cause, v in slots["idle"].items()}
            if slots
            else {},
        }
        return {
            "first": first,
            "last": last,
            "begin": begin,
            "end": end,
            "lanes": [self._lane(name, edges, most) for name in shown],
            "lanes_left_out": max(0, len(names) - _MOST_LANES),
            "waits": {cause: plain(values) for cause, values in waits.items()},
            "slots": slots,
            "idle": idle,
            "at_work": at_work,
            "waited_most": waited_most(at_work, idle["trainer"], idle["rollout"]),
            "causes": CAUSES,
            "steps": steps[:: max(1, -(-len(steps) // _MOST_MARKS))],
        }

    def _lane(self, name: str, edges: Floats, most: int) -> dict[str, Any]:
        kinds = self._lanes[name]
        busy = {kind: one.busy(edges) for kind, one in kinds.items()}
        seen = {kind: values for kind, values in busy.items() if values.any()}
        lane = {
            "lane": name,
            "busy": {kind: plain(values) for kind, values in seen.items()},
            "share": {kind: plain(kinds[kind].share(edges)) for kind in seen},
        }
        places = {kind: kinds[kind].between(edges[0], edges[-1]) for kind in seen}
        if sum(map(len, places.values())) <= most:
            lane["spans"] = {kind: kinds[kind].rows(places[kind]) for kind in seen}
        return lane

    def _trainer_works(self, edges: Floats) -> float:
        """Share of the time in which the trainer was at work."""
        kinds = self._lanes.get("trainer", {}).items()
        works = [one.share(edges).mean() for kind, one in kinds if not kind.startswith(_WAIT)]
        return min(1.0, float(sum(works)))

    def _waits(self, edges: Floats) -> dict[str, Floats]:
        """Shares of each part in which the trainer was idle, by cause.

        Before and after training it waits for evaluations, of which it knows nothing.
        """
        kinds = self._lanes.get("trainer", {})
        waits = {
            kind.removeprefix(_WAIT): one.share(edges)
            for kind, one in kinds.items()
            if kind.startswith(_WAIT)
        }
        waits = {cause: values for cause, values in waits.items() if values.any()}
        measured = self._lanes.get("evaluation", {}).get("evaluate")
        if measured is not None:
            known = sum((one.share(edges) for one in kinds.values()), np.zeros(len(edges) - 1))
            held_out = np.minimum(np.maximum(0.0, 1.0 - known), measured.share(edges))
            if held_out.any():
                waits["evaluation"] = held_out
        return waits

    def at(self, lane: str, moment: float, slack: float) -> list[dict[str, Any]]:
        """The spans of a lane at a moment, whole."""
        self.look()
        found = []
        for one in self._lanes.get(lane, {}).values():
            for source in one.sources(moment - slack, moment + slack)[-20:]:
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
        begins, ends = self._slots.bounds
        starts = [np.frombuffer(one.start).min() for one in kinds] + begins
        ends = [np.frombuffer(one.end).max() for one in kinds] + ends
        return float(min(starts, default=0.0)), float(max(ends, default=0.0))


def _parts(bins: int, steps: int) -> int:
    """Into how many parts a time with these train steps is cut."""
    if steps * _NARROWEST_STEP <= bins:
        return bins
    return min(bins, max(_FEWEST, steps // 2))


def _order(lane: str) -> tuple[int, str, int]:
    """The loop's own order: replicas, sandboxes, the trainer, its ranks and turns, evaluations."""
    kind, _, name = lane.partition(" ")
    place = ("replica", "sandbox", "trainer", "turn", "evaluation")
    number = int(name) if name.isdigit() else -1
    return (place.index(kind) if kind in place else len(place), "" if number >= 0 else name, number)
