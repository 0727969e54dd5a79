"""What a schedule was told and what it decided, one JSON line each, in the run directory.

A line is `[method, arguments, answer]`. Only these lines decide what a schedule says next, so
that they can be played to another one: `services/orchestrator/core/replay.py`.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, is_dataclass
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from services.orchestrator.core.events import Event, TrainingBegan
from services.orchestrator.run_folder.journal import Journal

BEGIN = "begin"
FULL = "full"
"""The method of the line of an orchestrator's first breath, and of the last before a loss."""
MOST_BYTES = 256 * 1024 * 1024
_QUESTIONS = frozenset(("free_slots", "interrupted", "live", "overdue", "select"))
"""Asked again and again: the same answer to the same question is written down once."""

DECISIONS: set[str] = set()
"""Names of the methods that are heard."""

Listener = Callable[[str, dict[str, Any], Any], None]
"""Is told the name of a method, its arguments by name, and what it answered."""


class Listened(Protocol):
    """Whatever has its decisions heard."""

    listener: Listener | None


P = ParamSpec("P")
S = TypeVar("S", bound=Listened)
T = TypeVar("T")


def decision(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """Have the listener hear of each call of this method."""
    names = tuple(signature(method).parameters)[1:]

    @wraps(method)
    def heard(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        answer = method(self, *args, **kwargs)
        if self.listener is not None:
            told = dict(zip(names, args, strict=False)) | kwargs
            self.listener(method.__name__, told, answer)
        return answer

    DECISIONS.add(method.__name__)
    return heard


def plain(answer: Any) -> Any:
    """An answer as it reads in the file."""
    if is_dataclass(answer) and not isinstance(answer, type):
        return {name: plain(value) for name, value in asdict(answer).items()}
    if isinstance(answer, frozenset):
        return sorted(answer)
    return list(answer) if isinstance(answer, tuple) else answer


class DecisionLog:
    """Appends decisions to a file; nothing follows where one is missing.

    What is lost with a kill is at its end.
    """

    def __init__(self, path: Path, *, max_bytes: int = MOST_BYTES) -> None:
        self._journal = Journal(path, max_bytes=max_bytes, last=[FULL, {}, None])
        self._open = False
        self._said: dict[str, str] = {}

    def on(self, event: Event) -> None:
        """See `Observer`."""
        match event:
            case TrainingBegan(schedule=schedule, batch_groups=batch_groups):
                config = schedule.model_dump(mode="json")
                self.open({"schedule": config, "batch_groups": batch_groups})

    def open(self, told: dict[str, Any]) -> None:
        """A schedule begins with nothing open; `told` is what it is made of."""
        self._open = True
        self._journal.write([BEGIN, told, None])

    def close(self) -> None:
        """Nothing more is written."""
        self._open = False
        self._journal.close()

    def hear(self, method: str, told: dict[str, Any], answer: Any) -> None:
        """See `Listener`."""
        if not self._open:
            return
        line = [method, told, plain(answer)]
        if method not in _QUESTIONS or (method in ("interrupted", "select") and answer):
            self._said.clear()
        elif self._said.get(method) == (said := json.dumps(line)):
            return
        else:
            self._said[method] = said
        self._journal.add(line)
        if method == "published":
            self._journal.flush()
