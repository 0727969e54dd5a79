"""Answers of a run, for people who want to see what the figures mean."""

from typing import Any
from xml.etree.ElementTree import Element

from services.page.reading.comparison.figure_text import MISSING, number
from services.page.reading.details.heldout_answers import Change, HeldOutQuery
from services.page.reading.run_folder import RunFolder
from services.page.reading.trajectory_index import TrajectoryQuery
from services.page.report.elements import Child, el, table

_EARLY, _LATE = 2, 4
_CHANGES: tuple[tuple[Change, str, int], ...] = (
    ("gained", "passes now", 4),
    ("lost", "passed before", 2),
    ("neither", "passes at neither", 2),
)


def answers(run: RunFolder) -> tuple[str, Element] | None:
    """What they are, and a table: held-out answers before and after, else those it trained on.

    None of a run that keeps neither.
    """
    return _heldout(run) or _trained_on(run)


def _heldout(run: RunFolder) -> tuple[str, Element] | None:
    rows: list[list[Child]] = []
    for change, meaning, most in _CHANGES:
        found = run.details.heldout(HeldOutQuery(change=change, limit=most))
        for task in found["tasks"]:
            before, after = task["before"] or {}, task["after"] or {}
            prompt = _text(after.get("prompt", before.get("prompt")))
            rows.append([meaning, prompt, _text(before.get("answer")), _text(after.get("answer"))])
    if not rows:
        return None
    moments = ("before training", "after step {}")
    heads = (moments[bool(found[side])].format(found[side]) for side in ("before", "after"))
    return "Held-out answers before and after", table(["", "prompt", *heads], rows)


def _trained_on(run: RunFolder) -> tuple[str, Element] | None:
    """Some of the first and some of the newest."""
    late = run.trajectories(TrajectoryQuery(limit=_LATE))
    first = max(late["total"] - _EARLY, len(late["trajectories"]))
    early = run.trajectories(TrajectoryQuery(limit=_EARLY, offset=first))
    lines = [*reversed(early["trajectories"]), *reversed(late["trajectories"])]
    if not lines:
        return None
    rows: list[list[Child]] = [
        [
            str(line["step"]),
            _text(line["prompt"]),
            _text(line["answer"]),
            str(line["verdict"]),
            number(line["reward"]) if isinstance(line["reward"], int | float) else MISSING,
        ]
        for line in lines
    ]
    head: list[Child] = ["step", "prompt", "answer", "verdict", "reward"]
    return "First and newest answers", table(head, rows)


def _text(value: Any) -> Element:
    return el("td", {"class": "text"}, MISSING if value is None else str(value))
