"""What is shown of a run that has ended."""

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from millrace_tools.deploy.run_file import read_run_file
from millrace_tools.main import main
from millrace_tools.run.run_summary import show_summary
from services.ledger.ledger import Ledger
from services.orchestrator.run_folder.earlier_run import EarlierRun
from services.orchestrator.run_folder.run_directory import RunDirectory
from services.protocol.run.orchestrator import Finding, RunRequest, RunState
from tests.cli.conftest import Orchestra


def _shown(orchestra: Orchestra, **changes: Any) -> str:
    status = orchestra.finished()
    assert status.summary is not None
    status = status.model_copy(update={"summary": status.summary.model_copy(update=changes)})
    screen = io.StringIO()
    show_summary(status, [], Console(file=screen, width=120))
    return screen.getvalue()


def test_a_pass_rate_that_is_not_the_final_one_says_when_it_was_measured(
    orchestra: Orchestra,
) -> None:
    shown = _shown(orchestra, train_steps=5, heldout_pass_rate_after=0.5, heldout_step=3)
    assert "10% -> 50% (after step 3, the last measured)" in shown
    shown = _shown(orchestra, train_steps=3, heldout_pass_rate_after=0.5, heldout_step=3)
    assert "10% -> 50% " in shown
    assert "after step" not in shown
    shown = _shown(orchestra, heldout_pass_rate_after=None, heldout_step=None)
    assert "10% -> not measured" in shown


def test_reasons_of_failures_are_shown_where_there_are_any(orchestra: Orchestra) -> None:
    shown = _shown(
        orchestra,
        failures={"http_400": 1, "deadline": 3},
        failure_example="add-7: no answer in 60 s",
        heldout_problem="2 of 100 tasks: no answer",
    )
    assert "│ failures" in shown
    assert "3 x deadline, 1 x http_400" in shown
    assert "add-7: no answer in 60 s" in shown
    assert "2 of 100 tasks: no answer" in shown
    assert "│ failures" not in _shown(orchestra)


def test_a_run_that_failed_before_its_summary_still_says_why_its_groups_failed(
    orchestra: Orchestra,
) -> None:
    screen = io.StringIO()
    status = orchestra.status(state=RunState.FAILED, failures={"http_400": 9})
    show_summary(status, [], Console(file=screen, width=120))
    assert "9 x http_400" in screen.getvalue()


@pytest.mark.parametrize("state", [RunState.STOPPED, RunState.FAILED])
def test_a_run_that_did_not_finish_ends_with_the_command_to_go_on(
    orchestra: Orchestra,
    run_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    state: RunState,
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    orchestra.statuses = [orchestra.status(state=state)]
    orchestra.replies["GET", "/v1/runs/tiny-1/trajectories"] = (200, [])
    assert main(["run", str(run_file), "--url", orchestra.url]) != 0
    last = capsys.readouterr().out.splitlines()[-1]
    config = orchestra.run_dir / "config.yaml"
    assert last == f"  millrace run {config} --resume tiny-1 --url {orchestra.url}"


def test_a_run_goes_on_from_the_file_in_its_own_directory(run_file: Path, tmp_path: Path) -> None:
    started = read_run_file(run_file, seed=3, steps=9)
    directory = RunDirectory.create(started, "tiny-1")
    Ledger(directory.ledger).close()
    again = read_run_file(directory.path / "config.yaml")
    assert again == started
    earlier = EarlierRun.of(RunRequest(config=again, resume="tiny-1"))
    assert earlier is not None
    assert earlier.directory.path == directory.path


def test_a_run_that_learned_nothing_ends_with_what_happened_and_what_to_try(
    orchestra: Orchestra,
) -> None:
    found = Finding(kind="no_gain", text="nothing was learned: 0% -> 0%", advice="Try easier tasks")
    status = orchestra.finished().model_copy(update={"findings": [found]})
    screen = io.StringIO()
    show_summary(status, [], Console(file=screen, width=120))
    assert "nothing was learned: 0% -> 0%.\n  Try easier tasks." in screen.getvalue()
    assert "version 2 = step 2 of this run" in screen.getvalue()
