"""`millrace status` and `millrace stop`."""

import os
import sys

import pytest

from millrace_tools.main import main
from services.protocol.run.orchestrator import RunState
from tests.cli.conftest import Orchestra

LONG_ID = "tiny_code-with-a-name-as-long-as-it-may-be-20261121-114221-4336"


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


def test_stop_says_how_far_the_run_got_and_how_to_go_on(
    orchestra: Orchestra, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert main(["stop", "tiny-1", "--url", orchestra.url]) == 0
    first, _, command = capsys.readouterr().out.splitlines()
    assert first == "tiny-1: stopped after 0 train steps"
    config = orchestra.run_dir / "config.yaml"
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
