"""`millrace run` and its siblings against an HTTP server that stands in for the orchestrator."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from millrace_tools.deploy.run_file import read_run_file
from millrace_tools.main import main
from services.ledger.ledger import Ledger
from services.ledger.sample_group import Prompt
from services.orchestrator.tasks.task_table import TaskTable
from services.protocol.errors import InvalidInput
from services.protocol.run.orchestrator import RunState
from services.protocol.run.task import NOT_SHOWN
from tests.cli.conftest import Orchestra, Reply

Changed = Callable[[str, str], Path]


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


def test_a_run_is_posted_followed_and_summed_up(
    orchestra: Orchestra, run_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (orchestra.run_dir / "learning_curve.png").write_bytes(b"")
    assert main(["run", str(run_file), "--url", orchestra.url]) == 0
    shown = capsys.readouterr().out
    assert "step 1/2" in shown
    assert "10% -> 95%" in shown
    assert "4 groups = 3 trained + 1 filtered" in shown
    assert "learning_curve.png" in shown
    assert "return a+10" in shown
    assert "add 1 [/]" in shown, "a prompt is text, not markup"


def test_what_is_posted_has_absolute_paths_and_the_overrides(
    orchestra: Orchestra, run_file: Path
) -> None:
    arguments = ["run", str(run_file), "--url", orchestra.url, "--seed", "3", "--steps", "9"]
    assert main([*arguments, "--resume", "tiny-0"]) == 0
    path, body = orchestra.posted[0]
    assert path == "/v1/runs"
    assert body["resume"] == "tiny-0"
    assert (body["config"]["seed"], body["config"]["steps"]) == (3, 9)
    assert body["config"]["task_file"] == str(run_file.parent / "tasks.jsonl")
    assert body["config"]["run_root"] == str(run_file.parent.parent / "elsewhere")


def test_a_failed_run_says_why_and_exits_with_1(
    orchestra: Orchestra, run_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    orchestra.statuses = [orchestra.status(state=RunState.FAILED, detail="the trainer is gone")]
    assert main(["run", str(run_file), "--url", orchestra.url]) == 1
    assert "the trainer is gone" in capsys.readouterr().out


def test_ctrl_c_asks_the_run_to_stop(orchestra: Orchestra, run_file: Path) -> None:
    orchestra.statuses = [orchestra.status(step=1)]  # for ever
    command = [sys.executable, "-m", "millrace_tools.main", "run", str(run_file)]
    process = subprocess.Popen(
        [*command, "--url", orchestra.url],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert orchestra.polled.wait(300)
    os.kill(process.pid, signal.SIGINT)
    shown, _ = process.communicate(timeout=300)
    assert process.returncode == 130
    assert orchestra.posted[-1][0] == "/v1/runs/tiny-1/stop"
    assert "stopped" in shown
    assert "Traceback" not in shown


def test_a_busy_cluster_is_one_clear_line(
    orchestra: Orchestra, run_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = {"param": "run", "value": "other-1", "fix": "Wait for it.", "message": "busy"}
    orchestra.replies["POST", "/v1/runs"] = (409, {"error": error})
    assert main(["run", str(run_file), "--url", orchestra.url]) == 2
    assert capsys.readouterr().err == "error: run: 'other-1' -> Wait for it.\n"


def test_nothing_listening_is_one_clear_line(
    run_file: Path, closed_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(run_file), "--url", closed_url]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"error: --url: '{closed_url}' -> Nothing answers there.")
    assert error.count("\n") == 1


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "http://[", "ftp://127.0.0.1"])
def test_a_url_that_is_none_is_refused(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--url", url]) == 2
    assert "--url" in capsys.readouterr().err


def test_another_server_on_that_port_is_recognised(
    orchestra: Orchestra, capsys: pytest.CaptureFixture[str]
) -> None:
    orchestra.replies["GET", "/v1/runs"] = (404, "<html>")
    assert main(["status", "--url", orchestra.url]) == 2
    assert "has no /v1/runs" in capsys.readouterr().err


@pytest.mark.parametrize("routes", [(503, "no routes yet"), (200, {"/": "router"})])
def test_services_that_are_still_starting_are_to_be_waited_for(
    orchestra: Orchestra, run_file: Path, capsys: pytest.CaptureFixture[str], routes: Reply
) -> None:
    orchestra.replies["POST", "/v1/runs"] = (404, {"detail": "Not Found"})
    orchestra.replies["GET", "/-/routes"] = routes
    assert main(["run", str(run_file), "--url", orchestra.url]) == 1
    error = capsys.readouterr().err
    assert "the services are still starting: run `millrace wait`" in error
    assert error.count("\n") == 1


def test_a_run_waits_for_the_services_and_says_for_what(
    orchestra: Orchestra, run_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    none, one = {"leased_replicas": 0}, {"leased_replicas": 1}
    orchestra.replies["GET", "/health"] = [(503, none), (503, none), (200, one)]
    assert main(["run", str(run_file), "--url", orchestra.url]) == 0
    shown = capsys.readouterr().out
    assert f"Waiting up to 300 s for the services at {orchestra.url}:" in shown
    assert "waiting: rollout_server is not ready (no replica has weights and a lease)" in shown
    assert [path for path, _ in orchestra.posted] == ["/v1/runs"]


def test_a_run_starts_nothing_on_services_that_are_not_up_in_time(
    orchestra: Orchestra, run_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    orchestra.replies["GET", "/health"] = (503, {"leased_replicas": 0})
    arguments = ["run", str(run_file), "--url", orchestra.url, "--wait"]
    assert main([*arguments, "0.01"]) == 1
    assert "not all services are up after 0.01 s: rollout_server" in capsys.readouterr().err
    assert not orchestra.posted
    assert main([*arguments, "0"]) == 0, "it does not look"


def test_a_server_of_others_is_not_waited_for(
    orchestra: Orchestra, run_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in ("/health", "/v1/runs"):
        orchestra.replies["GET", path] = (404, "<html>")
    assert main(["run", str(run_file), "--url", orchestra.url]) == 2
    assert "has no /v1/runs: is the orchestrator deployed?" in capsys.readouterr().err


def test_services_that_are_up_are_not_spoken_of(
    orchestra: Orchestra, run_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(run_file), "--url", orchestra.url]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("tiny-1 in ")
    assert "aiting" not in shown


GONE = {"param": "run_id", "value": "tiny-1", "fix": "No such run.", "message": "gone"}


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        ((404, {"error": GONE}), "this orchestrator does not know it; it is new"),
        ((500, "Internal Server Error"), "no answer for 0 s."),
    ],
    ids=["another cluster", "no cluster"],
)
def test_a_run_whose_cluster_died_ends_with_its_folder_and_the_command_that_resumes_it(
    orchestra: Orchestra,
    run_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    reply: Reply,
    why: str,
) -> None:
    monkeypatch.setattr("millrace_tools.run.follow._SILENCE_S", 0.0)
    ledger = Ledger(orchestra.run_dir / "ledger.sqlite")
    [group] = ledger.admit([Prompt(position=0, epoch=0, task_id="t")], version=1)
    ledger.close_batch(1, train=[group.group_id], filtered=[])
    ledger.close()
    orchestra.replies["GET", "/v1/runs/tiny-1"] = reply
    assert main(["run", str(run_file), "--url", orchestra.url]) == 1
    shown = capsys.readouterr()
    assert shown.err.startswith(f"error: tiny-1 was lost sight of: {why}")
    assert "Its ledger is at train step 1 of 2." in shown.out
    assert f"Its files are in {orchestra.run_dir}." in shown.out
    command = f"millrace run {orchestra.run_dir / 'config.yaml'} --resume tiny-1"
    assert shown.out.splitlines()[-1] == f"  {command} --url {orchestra.url}"


def test_a_service_that_asks_to_try_again_has_not_lost_the_run(
    orchestra: Orchestra, run_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    busy = {"param": "run", "value": "(not ready)", "fix": "Try again.", "message": "busy"}
    finished = orchestra.finished().model_dump(mode="json")
    orchestra.replies["GET", "/v1/runs/tiny-1"] = [(503, {"error": busy}), (200, finished)]
    assert main(["run", str(run_file), "--url", orchestra.url]) == 0
    assert "no answer; asking again for 60 s" in capsys.readouterr().out


def test_a_run_is_resumed_or_branched_off_but_not_both(
    orchestra: Orchestra, run_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["run", str(run_file), "--url", orchestra.url, "--branch", "tiny-0"]
    assert main(arguments) == 0
    assert [orchestra.posted[0][1][name] for name in ("resume", "branch")] == [None, "tiny-0"]
    with pytest.raises(SystemExit):
        main([*arguments, "--resume", "last"])
    assert "not allowed with argument" in capsys.readouterr().err


def test_a_refusal_of_a_task_shows_its_value_although_the_orchestrator_does_not(
    orchestra: Orchestra, run_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = run_file.parent / "tasks.jsonl"
    rows = [json.loads(line) for line in tasks.read_text().splitlines()]
    rows[1]["split"] = "held-out" + "?" * 500
    tasks.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(InvalidInput) as refused:
        TaskTable(read_run_file(run_file), quote=False)
    assert refused.value.value == NOT_SHOWN
    error = {"param": refused.value.field, "value": NOT_SHOWN, "fix": refused.value.fix}
    orchestra.replies["POST", "/v1/runs"] = (400, {"error": error})
    assert main(["run", str(run_file), "--url", orchestra.url]) == 2
    shown = capsys.readouterr().err
    assert shown.startswith(f"error: {tasks}, line 2: split: 'held-out???")
    assert len(shown) < len(str(tasks)) + 300


def test_a_refusal_of_a_file_that_only_the_orchestrator_reads_so_stays_as_it_is(
    orchestra: Orchestra, run_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = {"param": "tasks.jsonl, line 9: split", "value": NOT_SHOWN, "fix": "Change it."}
    orchestra.replies["POST", "/v1/runs"] = (400, {"error": error})
    assert main(["run", str(run_file), "--url", orchestra.url]) == 2
    expected = f"error: tasks.jsonl, line 9: split: '{NOT_SHOWN}' -> Change it.\n"
    assert capsys.readouterr().err == expected


def test_a_failing_orchestrator_exits_with_1_and_no_traceback(
    orchestra: Orchestra, capsys: pytest.CaptureFixture[str]
) -> None:
    orchestra.replies["GET", "/v1/runs"] = (500, "Internal Server Error")
    assert main(["status", "--url", orchestra.url]) == 1
    assert "answered 500" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("steps: 2", "step: 2", "step: 2 -> No such key; the nearest is steps."),
        (
            "steps: 2",
            "steps: 2\nsteps: 3",
            "is not valid YAML at line 6, column 1: the key steps is",
        ),
        ("steps: 2", "steps: !!bool x", "It is not valid YAML"),
        ("steps: 2", "steps: 2\nmax_tokens: 8", "No such key here; it belongs to sampling."),
        ("steps: 2\n", "", "steps: '(missing)' -> This key is required"),
        (
            "group_size: 2",
            "group_size: 1",
            "group_size: 1 -> Advantage grpo compares the answers to a prompt: give at least 2",
        ),
        ("model: m", "model: m\nschedule: {preset: fast}", "schedule.preset: 'fast'"),
        (
            "model: m",
            "model: m\nalgorithm: {preset: DAPPO}",
            "algorithm.preset: 'DAPPO' -> Input should be 'grpo'",
        ),
        ("model: m", "model: m\nalgorithm: {preset: DAPOO}", "; the nearest is dapo."),
        ("model: m", "model: [m", "is not valid YAML at line 5, column 6: expected"),
        ("tasks.jsonl", "tusks.jsonl", "There is no such file"),
    ],
)
def test_a_mistake_in_the_run_file_is_found_before_anything_is_asked(
    orchestra: Orchestra,
    changed: Changed,
    capsys: pytest.CaptureFixture[str],
    before: str,
    after: str,
    said: str,
) -> None:
    file = changed(before, after)
    assert main(["run", str(file), "--url", orchestra.url]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert said in error
    assert error.count("\n") == 1
    assert not orchestra.posted


def test_a_deployment_file_is_not_a_run_file(
    orchestra: Orchestra, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(Path(__file__).parents[2] / "deploy" / "laptop.yaml")
    assert main(["run", file, "--url", orchestra.url]) == 2
    error = capsys.readouterr().err
    assert error == (
        f"error: file: '{file}' -> This is a Serve file, not a run file: "
        f"deploy it with `serve run {file}`.\n"
    )
    assert not orchestra.posted


def test_a_broken_task_file_is_named_by_its_line(
    orchestra: Orchestra, run_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = run_file.parent / "tasks.jsonl"
    rows = [json.loads(line) for line in tasks.read_text().splitlines()]
    rows[1]["grader"]["kind"] = "guess"
    tasks.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["run", str(run_file), "--url", orchestra.url, "--dry-run"]) == 2
    assert "line 2: grader" in capsys.readouterr().err
    assert not orchestra.posted


def test_a_bad_override_is_refused(
    orchestra: Orchestra, run_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(run_file), "--url", orchestra.url, "--steps", "0"]) == 2
    assert "steps: 0 ->" in capsys.readouterr().err
