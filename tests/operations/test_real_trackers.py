"""TensorBoard and MLflow themselves, offline; what they wrote is read back."""

from pathlib import Path
from typing import Any

import pytest

from services.orchestrator.trackers.kinds import open_tracker
from services.orchestrator.trackers.tracker import TrackedRun
from services.protocol.orchestrator import RunState
from services.protocol.tracker import MlflowTracker, TensorBoardTracker

INSTALL = "pip install 'millrace[trackers]'"


def play(config: Any, folder: Path) -> None:
    """Three steps; then the run is resumed at step 2 and does step 3 again, otherwise."""
    run = TrackedRun(run_id="tiny-1", run_dir=folder, config={"steps": 3, "sampling": {"t": 1.0}})
    first = open_tracker(config, run)
    for step in (1, 2, 3):
        first.log(step, {"reward": step / 8, "trainer/kl": 0.5})
    first.close(RunState.STOPPED)
    again = open_tracker(config, run)
    again.rolled_back(2)
    again.log(3, {"reward": 0.75})
    again.close(RunState.FINISHED)


def test_tensorboard_shows_a_resumed_run_as_one_curve(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason=INSTALL)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    play(TensorBoardTracker(), tmp_path)
    shown = EventAccumulator(str(tmp_path / "tensorboard"))
    shown.Reload()
    assert [(one.step, one.value) for one in shown.Scalars("reward")] == [
        (1, 0.125),
        (2, 0.25),
        (3, 0.75),
    ]
    assert len(shown.Scalars("trainer/kl")) == 2, "that of the step done again is forgotten"


def test_mlflow_goes_on_in_the_same_run(tmp_path: Path) -> None:
    pytest.importorskip("mlflow", reason=INSTALL)
    from mlflow.tracking import MlflowClient

    play(MlflowTracker(), tmp_path)
    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path}/mlflow.db")
    experiment = client.get_experiment_by_name("millrace")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    history = client.get_metric_history(run.info.run_id, "reward")
    shown = sorted((one.step, one.value) for one in history)
    assert shown == [(1, 0.125), (2, 0.25), (3, 0.375), (3, 0.75)]
    assert run.info.status == "FINISHED"
    assert run.data.params == {"steps": "3", "sampling.t": "1.0"}
    assert run.data.tags["millrace.rolled_back_to"] == "2"
