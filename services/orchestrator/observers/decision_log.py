"""The decisions of a schedule, one JSON line each, in the run directory."""

import json
from pathlib import Path
from typing import Any

from services.orchestrator.core.decisions import BEGIN, FULL, plain
from services.orchestrator.core.events import Event, RunOver, TrainingBegan
from services.orchestrator.run_folder.journal import Journal

MOST_BYTES = 256 * 1024 * 1024
_QUESTIONS = frozenset(("free_slots", "interrupted", "live", "overdue", "select"))
"""Asked again and again: the same answer to the same question is written down once."""


class DecisionLog:
    """Appends decisions to a file; after a lost line it writes nothing more.

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
            case RunOver():
                self.close()

    def open(self, given: dict[str, Any]) -> None:
        """An empty schedule begins; `given` has its settings."""
        self._open = True
        self._journal.write([BEGIN, given, None])

    def close(self) -> None:
        """Close the file."""
        self._open = False
        self._journal.close()

    def hear(self, method: str, given: dict[str, Any], answer: Any) -> None:
        """See `Listener`."""
        if not self._open:
            return
        line = [method, given, plain(answer)]
        if method not in _QUESTIONS or (method in ("interrupted", "select") and answer):
            self._said.clear()
        elif self._said.get(method) == (said := json.dumps(line)):
            return
        else:
            self._said[method] = said
        self._journal.add(line)
        if method == "published":
            self._journal.flush()
