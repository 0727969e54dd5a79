"""An index of kept trajectories: one of 100,000 is found without reading the others."""

from array import array
from typing import Any

import msgspec
from pydantic import Field

from services.json_lines import Count, JsonLines
from services.ledger.sample_group import LARGEST
from services.protocol.strict import StrictModel

_SHORT = 240  # characters of a prompt or an answer in a list


MOST_SIBLINGS = 512
"""Trajectories of a sample group that are shown together."""


class _Head(msgspec.Struct):
    """The fields that a line is chosen by; the decoder skips all others."""

    step: Count
    group: Count
    reward: float
    tokens: Count
    verdict: str = ""
    trajectory: Count = 0
    policy_versions: list[Count] = []


class _Row(msgspec.Struct):
    """The fields of a line in a list; the decoder skips those of single tokens."""

    messages: Any = None
    answer: Any = ""
    policy_versions: Any = ()
    step: Any = None
    group: Any = None
    trajectory: Any = None
    task_id: Any = None
    reward: Any = None
    advantage: Any = None
    verdict: Any = None
    tokens: Any = None


class TrajectoryQuery(StrictModel, use_attribute_docstrings=True):
    """Which trajectories are asked for, newest first."""

    step: int | None = Field(default=None, ge=0, le=LARGEST)
    """Of this train step; any by default."""

    group: int | None = Field(default=None, ge=0, le=LARGEST)
    """Of this sample group; any by default."""

    verdict: str = Field(default="", max_length=200)
    """With this verdict; any by default."""

    mixed: bool = False
    """Only those with tokens of more than one policy version."""

    offset: int = Field(default=0, ge=0, le=LARGEST)
    """Trajectories to leave out."""

    limit: int = Field(default=50, ge=0, le=MOST_SIBLINGS)
    """Most trajectories."""


class TrajectoryIndex:
    """A few numbers of every line of `trajectories.jsonl`; grows with the file."""

    def __init__(self, lines: JsonLines) -> None:
        self._lines = lines
        self._forget()

    def _forget(self) -> None:
        self._step, self._group = array("q"), array("q")
        self._number, self._trajectory = array("q"), array("q")
        self._verdict, self._versions = array("q"), array("q")
        self._names: dict[str, int] = {}

    def look(self) -> int:
        """Read what was appended; returns how many there are."""
        for number, head in self._lines.follow(_Head, self._forget):
            self._add(number, head)
        return len(self._number)

    def _add(self, number: int, head: _Head) -> None:
        self._number.append(number)
        self._step.append(head.step)
        self._group.append(head.group)
        self._trajectory.append(head.trajectory)
        self._verdict.append(self._names.setdefault(head.verdict, len(self._names)))
        self._versions.append(len(head.policy_versions))

    @property
    def verdicts(self) -> list[str]:
        """Every verdict that there is."""
        return sorted(self._names)

    def find(self, query: TrajectoryQuery) -> tuple[int, list[int]]:
        """The number of matches, and the line numbers of the page asked for, newest first."""
        self.look()
        places: Any = range(len(self._number) - 1, -1, -1)
        verdict = self._names.get(query.verdict, -1)
        for wanted, column, value in (
            (query.step is not None, self._step, query.step),
            (query.group is not None, self._group, query.group),
            (bool(query.verdict), self._verdict, verdict),
        ):
            if wanted:
                places = [at for at in places if column[at] == value]
        if query.mixed:
            places = [at for at in places if self._versions[at] > 1]
        chosen = places[query.offset : query.offset + query.limit]
        return len(places), [self._number[at] for at in chosen]

    def read(self, number: int) -> dict[str, Any] | None:
        """One line, whole."""
        return self._lines.one(number, dict)

    def row(self, number: int) -> dict[str, Any] | None:
        """One line for a list: its texts cut short, without single tokens."""
        line = self._lines.one(number, _Row)
        if line is None:
            return None
        row = msgspec.structs.asdict(line)
        messages = row.pop("messages")
        last = messages[-1] if isinstance(messages, list) and messages else {}
        prompt = last.get("content") if isinstance(last, dict) else ""
        row |= {"answer": str(line.answer)[:_SHORT], "prompt": str(prompt or "")[:_SHORT]}
        return row | {"number": number}
