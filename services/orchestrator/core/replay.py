"""Plays a run's recorded decisions again, through the schedule of this version of Millrace."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from services.json_lines import JsonLines
from services.orchestrator.core.decisions import BEGIN, DECISIONS, FULL, plain
from services.orchestrator.core.schedule import Schedule
from services.protocol.errors import InvalidInput
from services.protocol.run.schedule import ScheduleConfig


@dataclass(kw_only=True)
class Replay:
    """The result of a replay.

    Attributes:
        decisions: lines played, by method.
        full: the record ends before the run did, as it had become too large.
        difference: the first line that does not come out the same, for people; None if all do.
    """

    decisions: Counter[str] = field(default_factory=Counter)
    full: bool = False
    difference: str | None = None


def replay(path: Path) -> Replay:
    """Play the decisions of a file until one differs.

    Raises:
        InvalidInput: there is no such file, or it does not begin as one.
    """
    played, schedule = Replay(), None
    for number, line in _lines(path):
        try:
            method, given, before = json.loads(line)
            if method == BEGIN:
                schedule = _schedule(given)
                played.decisions[method] += 1
                continue
        except (ValueError, TypeError, KeyError, ValidationError) as error:
            played.difference = f"line {number} cannot be read ({error}): {line}"
            break
        if method == FULL:
            played.full = True
            continue
        if schedule is None:
            raise InvalidInput("run_dir", str(path), "Give a run directory with decisions.jsonl.")
        now = _decide(schedule, method, given)
        if now != before:
            asked = ", ".join(f"{name}={value}" for name, value in given.items())
            played.difference = (
                f"line {number}: {method}({asked}) was {json.dumps(before)}, "
                f"is now {now if isinstance(now, str) else json.dumps(now)}"
            )
            break
        played.decisions[method] += 1
    return played


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines with their numbers from 1; lines that a kill cut short are left out."""
    if not path.is_file():
        fix = f"Give the directory of a run: it holds no {path.name}."
        raise InvalidInput("run_dir", str(path.parent), fix)
    whole = JsonLines(path)
    lines = [line.decode(errors="replace") for line in whole.raw(0, whole.look())]
    for number, (line, following) in enumerate(pairwise([*lines, ""]), start=1):
        # A kill in the middle of a line; the next orchestrator left it as it was.
        cut_short = not line.endswith("]") and following.startswith(f'["{BEGIN}"')
        if line and not cut_short:
            yield number, line


def _schedule(given: dict[str, Any]) -> Schedule:
    config = ScheduleConfig.model_validate(given["schedule"])
    return Schedule(config, batch_groups=given["batch_groups"])


def _decide(schedule: Schedule, method: str, given: dict[str, Any]) -> Any:
    """The answer as plain data, or the error for people."""
    if method not in DECISIONS:
        return f"not a decision: one of {', '.join(sorted(DECISIONS))}"
    try:
        return plain(getattr(schedule, method)(**given))
    except (KeyError, ValueError, TypeError, IndexError) as error:
        return f"refused: {error!r}"
