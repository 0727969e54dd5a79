"""Graders as a user writes them."""

import time
from typing import Any

from services.reward_service.graders.user_graders import NoVerdict, grader


@grader("length")
def length(completion: str, *, target: int) -> float:
    return 1.0 - abs(len(completion) - target) / target


def odd(completion: str, *, what: str) -> Any:
    """One that does what a grader must not, on all answers but a good one."""
    if completion == "good":
        return 1
    if what == "no verdict":
        raise NoVerdict("the judge is away")
    if what == "hang":
        time.sleep(60)
    if what == "die":
        import os

        os._exit(0)
    if what == "raise":
        raise KeyError(completion)
    return {"nan": float("nan"), "inf": float("inf"), "text": "1", "list": [1], "none": None}[what]


def number(completion: str) -> float:
    """One as people write it: it fails on what an answer may choose to say."""
    if completion == "sleep":
        time.sleep(60)
    if completion == "exit":
        raise SystemExit(1)
    return float(int(completion)) if completion.isdigit() else float(completion)
