"""What trackers are told, and that they never stop or slow a run."""

import ast
import inspect
import textwrap
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from services.observability.metrics import RunMetrics
from services.orchestrator.observers.run_record import RunRecord
from services.orchestrator.trackers import tracker as module
from services.orchestrator.trackers.tracker import (
    TrackedRun,
    Trackers,
    missing_packages,
    of_evaluation,
    of_step,
)
from services.protocol.errors import InvalidInput
from services.protocol.run.evaluation import Evaluation
from services.protocol.run.orchestrator import RunConfig, RunState
from services.protocol.run.tracker import MlflowTracker, TensorBoardTracker

ROOT = Path(__file__).parents[3]
LINE = {"step": 3, "reward": 0.5, "evaluations": [], "idle_seconds": {"trainer": {"rollout": 2}}}
SECRETIVE = "API request to https://me:secret@mlflow.example/api failed"


def run_config(*entries: Any) -> RunConfig:
    data = {
        "name": "tiny",
        "task_file": "/tasks.jsonl",
        "model": "m",
        "steps": 2,
        "batch_groups": 2,
        "group_size": 2,
        "trackers": list(entries),
    }
    return RunConfig.from_data(data, source="run")


class Recording:
    """A tracker that remembers, and does what a test asks before it does."""

    def __init__(self, before: Callable[[], None] = lambda: None) -> None:
        self.before, self.heard = before, []

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.before()
        self.heard.append((step, dict(values)))

    def rolled_back(self, step: int) -> None:
        self.heard.append(("back", step))

    def close(self, state: RunState) -> None:
        self.heard.append(("closed", state))


@pytest.fixture
def losses(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Reasons of the losses that were counted."""
    counted: list[str] = []
    monkeypatch.setattr(
        RunMetrics.tracker_losses, "inc", lambda value, tags: counted.append(tags["reason"])
    )
    return counted


def started(folder: Path, open_it: Callable[..., Any]) -> Trackers:
    config = run_config("tensorboard")
    return Trackers(config, run_id="tiny-1", run_dir=folder, open_it=open_it)


def test_one_line_of_a_run_file_names_trackers_with_or_without_options() -> None:
    plain, with_options = run_config(
        "tensorboard", {"kind": "mlflow", "uri": "http://tracking:5000"}
    ).trackers
    assert plain == TensorBoardTracker()
    assert with_options == MlflowTracker(uri="http://tracking:5000")
    with pytest.raises(InvalidInput, match="at most once"):
        run_config("wandb", {"kind": "wandb", "mode": "offline"})
    for unknown in ("comet", {"kind": "wandb", "colour": "red"}, {"kind": "mlflow", "uri": ""}):
        with pytest.raises(InvalidInput, match="trackers"):
            run_config(unknown)


@pytest.mark.parametrize(
    "entry",
    [
        {"kind": "mlflow", "uri": "postgresql://me:secret@db/mlflow"},
        {"kind": "wandb", "base_url": "https://token@wandb.example"},
    ],
)
def test_a_password_is_kept_out_of_the_run_file_which_is_shown(entry: dict[str, str]) -> None:
    with pytest.raises(InvalidInput, match="environment variables"):
        run_config(entry)


def test_a_missing_package_is_said_before_a_run_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    (problem,) = missing_packages(run_config("wandb").trackers)
    assert (problem.field, problem.value) == ("trackers", "wandb")
    assert "pip install 'millrace[trackers]'" in problem.fix
    assert not list(missing_packages(run_config().trackers))


def test_numbers_of_a_step_have_flat_names_and_evaluations_stand_at_their_own_step() -> None:
    assert of_step(LINE) == {"reward": 0.5, "idle_seconds/trainer/rollout": 2.0}
    evaluation = Evaluation(
        name="hard",
        step=2,
        tasks=4,
        samples=2,
        temperature=1.0,
        graded=4,
        answers=8,
        pass_at={1: 0.25, 2: 0.5},
        reward=None,
        oldest_version=1,
        newest_version=1,
        tokens=10,
        seconds=1.5,
    )
    assert of_evaluation(evaluation) == {
        "evaluation/hard/pass_at_1": 0.25,
        "evaluation/hard/pass_at_2": 0.5,
        "evaluation/hard/graded": 4,
        "evaluation/hard/seconds": 1.5,
    }


def test_everything_reaches_a_tracker_in_order(tmp_path: Path, losses: list[str]) -> None:
    tracker = Recording()
    told: list[TrackedRun] = []

    def open_it(config: Any, run: TrackedRun) -> Recording:
        told.append(run)
        return tracker

    feeding = started(tmp_path, open_it)
    feeding.step(LINE)
    feeding.rolled_back(2)
    feeding.step(LINE)
    feeding.close(RunState.FINISHED)
    steps = (3, {"reward": 0.5, "idle_seconds/trainer/rollout": 2.0})
    assert tracker.heard == [steps, ("back", 2), steps, ("closed", RunState.FINISHED)]
    assert told[0].run_id == "tiny-1"
    assert "trackers" not in told[0].config, "an address may hold a password"
    assert not losses


def test_a_tracker_that_fails_is_tried_again_and_each_loss_counted_but_told_once(
    tmp_path: Path, losses: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker, attempts = (
        Recording(),
        iter([ConnectionError(SECRETIVE), ConnectionError("down"), None]),
    )

    def open_it(config: Any, run: TrackedRun) -> Recording:
        error = next(attempts)
        if error is not None:
            raise error
        return tracker

    warned: list[tuple[str, str]] = []

    def warning(event: str, *, error: str, **_: Any) -> None:
        warned.append((event, error))

    monkeypatch.setattr(module._log, "warning", warning)
    feeding = started(tmp_path, open_it)
    for _ in range(3):
        feeding.step(LINE)
    feeding.close(RunState.STOPPED)
    assert [what for what, _ in tracker.heard] == [3, "closed"]
    assert losses == ["error", "error"]
    ((event, error),) = warned
    assert event == "tracker_failed"
    assert "mlflow.example/api" in error
    assert "secret" not in error


def test_a_tracker_that_hangs_costs_the_run_nothing_but_the_deadline_at_its_end(
    tmp_path: Path, losses: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_QUEUE", 2)
    hanging, go_on = threading.Event(), threading.Event()

    def hang() -> None:
        hanging.set()
        go_on.wait(300)

    feeding = started(tmp_path, lambda config, run: Recording(hang))
    feeding.step(LINE)
    assert hanging.wait(300)
    for _ in range(5):
        feeding.step(LINE)  # would never return if it waited
    assert losses == ["full"] * 3
    began = time.monotonic()
    feeding.close(RunState.FINISHED, timeout_s=0.1)
    assert time.monotonic() - began < 30
    assert losses[-1] == "late"
    go_on.set()


def test_every_figure_of_a_step_is_explained() -> None:
    explained = (ROOT / "docs" / "tracking.md").read_text()
    source = ast.parse(textwrap.dedent(inspect.getsource(RunRecord._line)))
    (line,) = [node.value for node in ast.walk(source) if isinstance(node, ast.Return)]
    assert isinstance(line, ast.Dict)
    names = {str(key.value) for key in line.keys if isinstance(key, ast.Constant)}
    assert len(names) > 20
    unexplained = {
        name for name in names if f"`{name}`" not in explained and f"`{name}/" not in explained
    }
    assert unexplained == {"step", "heldout_pass_rate", "heldout_step", "evaluations"}
