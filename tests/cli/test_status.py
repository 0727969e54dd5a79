"""`millrace status` and `millrace stop`."""

import os
import sys
from pathlib import Path

import pytest

from millrace_tools.deploy.run_file import read_run_file
from millrace_tools.main import main
from services.ledger.ledger import Ledger
from services.ledger.sample_group import Prompt
from services.orchestrator.run_folder.run_directory import RunDirectory
from services.protocol.run.orchestrator import RunState
from tests.cli.conftest import Orchestra

LONG_ID = "tiny_code-with-a-name-as-long-as-it-may-be-20261121-114221-4336"


@pytest.fixture(autouse=True)
def _no_runs_of_this_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_run_id_is_never_broken_in_two(
    orchestra: Orchestra, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    orchestra.statuses = [orchestra.status(run_id=LONG_ID)]
    assert main(["status", "--url", orchestra.url]) == 0
    heading, line = capsys.readouterr().out.splitlines()
    assert line.split() == [LONG_ID, "training", "0/2", "0.25", "0.10", "12"]
    assert heading.split() == ["run", "state", "step", "reward", "held-out", "seconds"]


def test_no_runs_are_said_in_words(
    orchestra: Orchestra, capsys: pytest.CaptureFixture[str]
) -> None:
    orchestra.replies["GET", "/v1/runs"] = (200, [])
    assert main(["status", "--url", orchestra.url]) == 0
    assert capsys.readouterr().out == "No runs yet.\n"


def test_one_run_is_shown_in_rounded_numbers(
    orchestra: Orchestra, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = {"reward": 1 / 3, "elapsed_s": 12.3456789, "tokens_per_second": 1306.123456}
    idle = {"trainer": {"rollout": 0.6, "score": 0.2}, "rollout": {"weights": 0.001}}
    orchestra.statuses = [orchestra.status(**odd, staleness=None, idle=idle)]
    assert main(["status", "tiny-1", "--url", orchestra.url]) == 0
    shown = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert (shown["reward"], shown["elapsed_s"]) == ("0.33", "12.35")
    assert (shown["tokens_per_second"], shown["staleness"]) == ("1306.12", "-")
    assert shown["ledger"] == "4 groups = 3 trained + 1 filtered"
    assert shown["run_id"] == "tiny-1"
    assert shown["idle"].startswith("trainer 60% rollout, 20% score")


def test_a_reader_that_leaves_early_gets_no_traceback(
    orchestra: Orchestra, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millrace_tools.run.status.print_items", lambda *_: print("a line"))
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as gone:
        monkeypatch.setattr(sys, "stdout", gone)
        assert main(["status", "--url", orchestra.url]) == 1


def _on_disk(run_file: Path, run_id: str, *, trained: int, written_at: float) -> RunDirectory:
    """A run of two steps in `runs`, as a dead cluster leaves it."""
    config = read_run_file(run_file).model_copy(update={"run_root": str(Path("runs").resolve())})
    directory = RunDirectory.create(config, run_id)
    ledger = Ledger(directory.ledger)
    prompts = [Prompt(position=place, epoch=0, task_id="t") for place in range(trained + 1)]
    for step, group in enumerate(ledger.admit(prompts, version=1)[:trained], start=1):
        ledger.close_batch(step, train=[group.group_id], filtered=[])
        line = {
            "step": step,
            "reward": step / 4,
            "heldout_pass_rate": None,
            "elapsed_s": 7.0 * step,
        }
        directory.metrics.write(line | {"policy_version": step, "staleness_max": 0.0})
    ledger.note(elapsed_s=7.0 * trained)
    ledger.close()
    directory.close()
    os.utime(directory.ledger, (written_at, written_at))
    return directory


def test_runs_on_disk_are_listed_where_nothing_answers_with_the_way_to_go_on(
    run_file: Path, closed_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    _on_disk(run_file, "tiny-2", trained=1, written_at=2e9)
    finished = _on_disk(run_file, "tiny-3", trained=2, written_at=3e9)
    (finished.path / "summary.json").write_text("{}")
    (Path("runs") / "no-run").mkdir()
    assert main(["status", "--url", closed_url]) == 2
    shown = capsys.readouterr()
    lines = [line.split() for line in shown.out.splitlines()]
    assert lines[0] == ["On", "disk", "in", "runs:"]
    assert lines[2:4] == [
        ["tiny-2", "unfinished", "1/2", "0.25", "-", "7"],
        ["tiny-3", "finished", "2/2", "0.50", "-", "14"],
    ]
    command = f"millrace run runs/tiny-2/config.yaml --resume tiny-2 --url {closed_url}"
    assert shown.out.splitlines()[-1].strip() == command
    assert "Nothing answers there." in shown.err


def test_a_look_at_a_run_on_disk_does_not_make_it_the_newest(
    run_file: Path, closed_url: str
) -> None:
    older = _on_disk(run_file, "tiny-2", trained=1, written_at=2e9)
    newer = _on_disk(run_file, "tiny-3", trained=2, written_at=3e9)
    assert main(["status", "tiny-2", "--url", closed_url]) == 0
    assert (older.written_at, newer.written_at) == (2e9, 3e9)


def test_runs_that_a_new_orchestrator_does_not_know_stand_below_those_that_it_does(
    orchestra: Orchestra, run_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _on_disk(run_file, "tiny-1", trained=1, written_at=1e9)
    _on_disk(run_file, "tiny-2", trained=1, written_at=2e9)
    assert main(["status", "--url", orchestra.url, "--runs", "elsewhere"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in shown[:5]] == ["run", "tiny-1", "On", "run", "tiny-2"]


def test_one_run_on_disk_is_shown_as_its_files_have_it(
    orchestra: Orchestra, run_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _on_disk(run_file, "tiny-2", trained=1, written_at=2e9)
    error = {"param": "run_id", "value": "tiny-2", "fix": "No such run."}
    orchestra.replies["GET", "/v1/runs/tiny-2"] = (404, {"error": error})
    assert main(["status", "tiny-2", "--url", orchestra.url]) == 0
    lines = capsys.readouterr().out.splitlines()
    shown = dict(line.split(maxsplit=1) for line in lines[:-2])
    assert (shown["state"], shown["step"], shown["steps"]) == ("unfinished", "1", "2")
    assert shown["ledger"] == "2 groups = 1 trained + 1 in flight"
    assert lines[-1].strip().startswith("millrace run runs/tiny-2/config.yaml --resume tiny-2")


def test_stop_says_how_far_the_run_got_and_how_to_go_on(
    orchestra: Orchestra, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert main(["stop", "tiny-1", "--url", orchestra.url]) == 0
    first, _, command = capsys.readouterr().out.splitlines()
    assert first == "tiny-1: stopped after 0 train steps"
    config = Path("runs") / "tiny-1" / "config.yaml"  # from the current folder
    assert command.split("millrace ")[1] == f"run {config} --resume tiny-1 --url {orchestra.url}"


def test_stop_without_an_id_stops_the_active_run(
    orchestra: Orchestra, capsys: pytest.CaptureFixture[str]
) -> None:
    over = orchestra.status(run_id="tiny-0", state=RunState.STOPPED).model_dump(mode="json")
    active = orchestra.status().model_dump(mode="json")
    orchestra.replies["GET", "/v1/runs"] = (200, [over, active])
    assert main(["stop", "--url", orchestra.url]) == 0
    assert orchestra.posted == [("/v1/runs/tiny-1/stop", None)]
    assert capsys.readouterr().out.startswith("tiny-1: stopped after")


def test_stop_without_an_active_run_is_one_clear_line(
    orchestra: Orchestra, capsys: pytest.CaptureFixture[str]
) -> None:
    orchestra.statuses = [orchestra.finished()]
    assert main(["stop", "--url", orchestra.url]) == 2
    expected = "error: run_id: '(none)' -> No run is active, so there is nothing to stop.\n"
    assert capsys.readouterr().err == expected
    assert not orchestra.posted


def test_stopping_a_run_that_is_over_says_so(
    orchestra: Orchestra, capsys: pytest.CaptureFixture[str]
) -> None:
    orchestra.statuses = [orchestra.finished()]
    assert main(["stop", "tiny-1", "--url", orchestra.url]) == 0
    assert capsys.readouterr().out == "tiny-1: finished after 2 train steps; it was over already\n"
    assert not orchestra.posted
