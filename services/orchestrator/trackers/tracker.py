"""What every tracker can do. Each is used by one thread of its own, and may raise anything."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from services.protocol.run.orchestrator import RunState


@dataclass(frozen=True, kw_only=True)
class TrackedRun:
    """The run as a tracker is told of it.

    Attributes:
        run_id: under which a resumed run is found again.
        run_dir: where local trackers write.
        config: the run file, as plain data.
    """

    run_id: str
    run_dir: Path
    config: Mapping[str, Any]


class Tracker(Protocol):
    """A tracker whose run is open."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Show values of one train step."""

    def rolled_back(self, step: int) -> None:
        """What was shown of steps above `step` is done again."""

    def close(self, state: RunState) -> None:
        """The run is over, for now: it may be resumed."""
