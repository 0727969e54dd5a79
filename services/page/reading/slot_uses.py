"""What a run's admission slots were used for, from one change to the next."""

from array import array
from typing import Any

import numpy as np

from services.page.reading.spans import Floats, Span, plain

_USES = ("sampling", "scoring", "ready", "training", "updating", "free")
_CAUSES = {
    "updating": "weights",
    "training": "trainer",
    "scoring": "score",
    "ready": "batch",
    "free": "admission",
}


class SlotUses:
    """Numbers of slots by use; grows with the timeline."""

    def __init__(self) -> None:
        self._at = array("d")
        self._columns = {name: array("d") for name in _USES}

    def __len__(self) -> int:
        return len(self._at)

    def add(self, span: Span) -> None:
        """From the span's start on, slots are used like this."""
        self._at.append(span.start)
        for name, column in self._columns.items():
            column.append(getattr(span, name))

    @property
    def bounds(self) -> tuple[list[float], list[float]]:
        """The first and the last change; both empty before the first."""
        return list(self._at[:1]), list(self._at[-1:])

    def between(self, edges: Floats) -> dict[str, Any] | None:
        """Mean numbers by use in each part of a time, and the main cause of idle slots there.

        `idle` are the causes' shares of all slots; None before the first change.
        """
        if not self._at:
            return None
        columns = {name: self._mean(column, edges) for name, column in self._columns.items()}
        slots = np.maximum(sum(columns.values()), 1e-9)
        idle = {cause: columns[use] / slots for use, cause in _CAUSES.items()}
        others = np.stack(list(idle.values()))
        causes, is_idle = list(idle), others.max(0) > 0
        why = [causes[i] if some else "" for i, some in zip(others.argmax(0), is_idle, strict=True)]
        return {
            "columns": {name: plain(values) for name, values in columns.items()},
            "idle": {cause: plain(values) for cause, values in idle.items() if values.any()},
            "why": why,
        }

    def _mean(self, column: "array[float]", edges: Floats) -> Floats:
        """Mean over each part; 0 before the first change."""
        at, value = np.frombuffer(self._at), np.frombuffer(column)
        order = np.argsort(at, kind="stable")
        at, value = at[order], value[order]
        sums = np.concatenate(([0.0], np.cumsum(value[:-1] * np.diff(at))))
        place = np.searchsorted(at, edges, side="right") - 1
        since = np.where(place >= 0, sums[place] + value[place] * (edges - at[place]), 0.0)
        return np.maximum(0.0, np.diff(since) / np.diff(edges))
