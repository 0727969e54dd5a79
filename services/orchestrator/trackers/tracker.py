"""Experiment trackers. Each is used by one thread of its own, and may raise anything."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from services.protocol.errors import InvalidInput
from services.protocol.run.orchestrator import RunState
from services.protocol.run.tracker import (
    MlflowTracker,
    TensorBoardTracker,
    TrackerConfig,
    WandbTracker,
)

_PACKAGES = {"tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlflow"}


@dataclass(frozen=True, kw_only=True)
class TrackedRun:
    """The run as a tracker sees it.

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
        """Steps above `step` are done again."""

    def close(self, state: RunState) -> None:
        """The run is over, for now: it may be resumed."""


def missing_packages(trackers: Sequence[TrackerConfig]) -> Iterator[InvalidInput]:
    """A problem for each tracker whose package is not installed here."""
    for tracker in trackers:
        if find_spec(_PACKAGES[tracker.kind]) is None:
            fix = (
                f"The package {_PACKAGES[tracker.kind]} is not installed here: "
                "`pip install 'millrace[trackers]'` where the orchestrator runs."
            )
            yield InvalidInput("trackers", tracker.kind, fix)


def open_tracker(config: TrackerConfig, run: TrackedRun) -> Tracker:
    """Begin, or go on with, a run in a tracker; importing the package may take seconds."""
    match config:
        case TensorBoardTracker():
            from services.orchestrator.trackers import tensorboard_run

            return tensorboard_run.open_run(config, run)
        case WandbTracker():
            from services.orchestrator.trackers import wandb_run

            return wandb_run.open_run(config, run)
        case MlflowTracker():
            from services.orchestrator.trackers import mlflow_run

            return mlflow_run.open_run(config, run)
