"""Which tracker is made for which entry of a run file, and the package that each needs."""

from collections.abc import Iterator, Sequence
from importlib.util import find_spec

from services.orchestrator.trackers.tracker import TrackedRun, Tracker
from services.protocol.errors import InvalidInput
from services.protocol.run.tracker import (
    MlflowTracker,
    TensorBoardTracker,
    TrackerConfig,
    WandbTracker,
)

_PACKAGES = {"tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlflow"}


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
