"""The result of a check."""

from dataclasses import dataclass
from enum import StrEnum
from functools import partial


class Grade(StrEnum):
    """The severity: a fault keeps something from working, a note costs speed or comfort."""

    GOOD = "good"
    NOTE = "note"
    FAULT = "fault"


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        found: the fact.
        fix: how to change it; empty where nothing is to be done.
    """

    grade: Grade
    found: str
    fix: str = ""


good, note, fault = (partial(Finding, grade) for grade in Grade)
