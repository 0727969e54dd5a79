"""Answers to held-out tasks, those of two evaluations next to each other."""

from typing import Any, Literal

import msgspec
from pydantic import Field

from services.json_lines import Count, JsonLines
from services.ledger.sample_group import LARGEST
from services.protocol.strict import StrictModel

Change = Literal["", "gained", "lost", "both", "neither"]
_PASSED = 1.0


class _Head(msgspec.Struct):
    set: str
    step: Count
    task_id: str
    reward: float | None = None


class HeldOutQuery(StrictModel, use_attribute_docstrings=True):
    """Which held-out answers are asked for."""

    name: str = Field(default="", max_length=80)
    """The held-out set; the first by default."""

    before: int | None = Field(default=None, ge=0, le=LARGEST)
    """Train steps at the one evaluation; the first by default."""

    after: int | None = Field(default=None, ge=0, le=LARGEST)
    """Train steps at the other; the newest by default."""

    change: Change = ""
    """Tasks whose first answer passed after and not before (`gained`), the other way round
    (`lost`), at both or at neither; all by default."""

    offset: int = Field(default=0, ge=0, le=LARGEST)
    """Tasks to leave out."""

    limit: int = Field(default=20, ge=0, le=100)
    """Most tasks."""


class HeldOutAnswers:
    """`heldout_answers.jsonl` by set, step and task; the newest line counts."""

    def __init__(self, lines: JsonLines) -> None:
        self._lines = lines
        self._forget()

    def _forget(self) -> None:
        self._sets: dict[str, dict[int, dict[str, tuple[int, bool]]]] = {}

    def compared(self, query: HeldOutQuery) -> dict[str, Any]:
        """Tasks with their answers at two evaluations, and how many changed in which way."""
        for number, head in self._lines.follow(_Head, self._forget):
            passed = head.reward is not None and head.reward >= _PASSED
            steps = self._sets.setdefault(head.set, {})
            steps.setdefault(head.step, {})[head.task_id] = (number, passed)
        name = query.name if query.name in self._sets else next(iter(self._sets), "")
        steps = self._sets.get(name, {})
        before = query.before if query.before in steps else min(steps, default=None)
        after = query.after if query.after in steps else max(steps, default=None)
        known: dict[str, Any] = {"sets": list(self._sets), "name": name, "steps": sorted(steps)}
        known |= {"before": before, "after": after}
        if before is None or after is None:
            return known | {"counts": {}, "total": 0, "tasks": []}
        pairs = {
            task: (one, steps[after][task])
            for task, one in steps[before].items()
            if task in steps[after]
        }
        changes = {task: _change(old[1], new[1]) for task, (old, new) in pairs.items()}
        chosen = [task for task in pairs if query.change in ("", changes[task])]
        page = chosen[query.offset : query.offset + query.limit]
        counts = {name: sum(one == name for one in changes.values()) for name in _NAMES}
        rows = [
            {"task_id": task, "change": changes[task]}
            | {
                side: self._lines.one(number, dict)
                for side, (number, _) in zip(("before", "after"), pairs[task], strict=True)
            }
            for task in page
        ]
        return known | {"counts": counts, "total": len(chosen), "tasks": rows}


_NAMES = ("gained", "lost", "both", "neither")


def _change(before: bool, after: bool) -> str:
    if before == after:
        return "both" if after else "neither"
    return "gained" if after else "lost"
