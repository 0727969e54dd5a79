"""What a check says."""

from dataclasses import dataclass
from enum import StrEnum


class Grade(StrEnum):
    """How bad it is: a fault keeps something from working, a note costs speed or comfort."""

    GOOD = "good"
    NOTE = "note"
    FAULT = "fault"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The answer of one check.

    Attributes:
        found: what is so.
        fix: what to do about it; empty where there is nothing to do.
    """

    grade: Grade
    found: str
    fix: str = ""


def good(found: str) -> Finding:
    """All is well."""
    return Finding(grade=Grade.GOOD, found=found)


def note(found: str, fix: str) -> Finding:
    """It works, but not as well as it could."""
    return Finding(grade=Grade.NOTE, found=found, fix=fix)


def fault(found: str, fix: str) -> Finding:
    """Something does not work."""
    return Finding(grade=Grade.FAULT, found=found, fix=fix)
