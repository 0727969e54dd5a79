"""TensorBoard, Weights & Biases and MLflow themselves, offline; what they wrote is read back."""

import json
import struct
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from services.orchestrator.trackers.tracker import TrackedRun, open_tracker
from services.protocol.run.orchestrator import RunState
from services.protocol.run.tracker import MlflowTracker, TensorBoardTracker, WandbTracker

INSTALL = "pip install 'millrace[trackers]'"
WRITTEN_S = 30.0
_BLOCK = 32768


def play(config: Any, folder: Path, later: Path | None = None) -> None:
    """Three steps; then the run is resumed at step 2 and does step 3 again, otherwise."""
    run = TrackedRun(run_id="tiny-1", run_dir=folder, config={"steps": 3, "sampling": {"t": 1.0}})
    first = open_tracker(config, run)
    for step in (1, 2, 3):
        first.log(step, {"reward": step / 8, "trainer/kl": 0.5})
    first.close(RunState.STOPPED)
    again = open_tracker(config, replace(run, run_dir=later or folder))
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


def records(file: Path) -> Iterator[bytes]:
    """W&B's file is one of LevelDB's logs behind seven bytes of its own."""
    data, at, whole = file.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if _BLOCK - at % _BLOCK < 7:
            at += _BLOCK - at % _BLOCK
            continue
        _, size, kind = struct.unpack_from("<IHB", data, at)
        whole += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):
            yield whole
            whole = b""


def test_wandb_writes_runs_of_one_id_without_a_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb", reason=INSTALL)
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    # Its folders have names of whole seconds, which resuming takes; two places take none.
    (later := tmp_path / "later").mkdir()
    play(WandbTracker(mode="offline", project="ours"), tmp_path, later)
    written = [record for one in (tmp_path, later) for record in whole_run(one)]
    runs = [one.run for one in written if one.WhichOneof("record_type") == "run"]
    assert {(run.project, run.run_id) for run in runs} == {("ours", "tiny-1")}
    rows = [values(one) for one in written if one.WhichOneof("record_type") == "history"]
    shown = sorted((row["train_step"], row["reward"]) for row in rows)
    assert shown == [(1, 0.125), (2, 0.25), (3, 0.375), (3, 0.75)]


def whole_run(folder: Path) -> list[Any]:
    """The records of the one run below; its writer is a process of its own, and may be behind."""
    from wandb.proto.wandb_internal_pb2 import Record

    deadline = time.monotonic() + WRITTEN_S
    while True:
        (file,) = folder.glob("wandb/offline-run-*/*.wandb")
        written = [Record.FromString(content) for content in records(file)]
        if any(one.WhichOneof("record_type") == "exit" for one in written):
            return written
        assert time.monotonic() < deadline, written
        time.sleep(0.05)


def values(record: Any) -> dict[str, Any]:
    """A row of the history."""
    items = record.history.item
    return {
        one.nested_key[0] if one.nested_key else one.key: json.loads(one.value_json)
        for one in items
    }
