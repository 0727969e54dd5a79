"""Sample groups that failed, by reason, with one of them as an example for people."""

from collections import Counter
from dataclasses import dataclass, field

from services.protocol.text_file import encodable

_SHOWN = 300  # characters


@dataclass(kw_only=True)
class Failures:
    """Failed sample groups of a run.

    Attributes:
        counts: failed groups by reason.
        example: task and problem of the first one, empty while there is none.
        in_row: failed groups since the newest group without a failure.
        last: the newest problem.
    """

    counts: Counter[str] = field(default_factory=Counter)
    example: str = ""
    in_row: int = 0
    last: str = ""

    def add(self, reason: str, *, task_id: str, problem: str, expected: bool = False) -> None:
        """A sample group of this task has failed; no number of expected failures ends a run."""
        self.counts[reason] += 1
        self.in_row += not expected
        self.last = problem
        self.example = self.example or f"task {task_id}: {problem}"


def one_line(text: str) -> str:
    """A foreign message on one line, cut to a readable length; UTF-8 can hold it."""
    line = " ".join(encodable(text).split())
    return line if len(line) <= _SHOWN else line[: _SHOWN - 4] + " ..."
