"""Stages run one after another: a failure is one line, and the rest goes on."""

import argparse
import json
import time
from pathlib import Path

import pytest
from rich.console import Console

from millrace_tools.accept import runner
from millrace_tools.accept.bench import Bench, ProgramFailed, measured_by
from millrace_tools.accept.command import accept
from millrace_tools.accept.deadline import Deadline, StageLate
from millrace_tools.accept.report import Figure, Hardware, Report, Verdict
from millrace_tools.accept.stage import NotTried, Outcome, Stage
from millrace_tools.accept.stages import every
from millrace_tools.command import FAILED
from millrace_tools.main import main
from services.protocol.errors import InvalidInput, NotReady

MACHINE = Hardware(cpu="a processor", cores=2, memory_gib=8.0, system="Linux 6.1")
GOOD = Outcome(figures=(Figure(name="speed", value=1234.5, unit="tokens/s"),))


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(
        folder=tmp_path, quick=True, address=None, hardware=MACHINE, console=Console(quiet=True)
    )


def stage(name: str, run, **needs) -> Stage:
    return Stage(name=name, purpose="shows something", deadline_s=60.0, run=run, **needs)


def raising(error: Exception):
    def run(bench: Bench, deadline: Deadline) -> Outcome:
        raise error

    return run


def late(bench: Bench, deadline: Deadline) -> Outcome:
    Deadline(0.0).wait_until(lambda: False, "what never comes")
    raise AssertionError("it waited for nothing")


def good(bench: Bench, deadline: Deadline) -> Outcome:
    return GOOD


FAILURES = {
    "a bad figure": (lambda *_: Outcome(problem="off by 2"), "off by 2"),
    "an error of many lines": (raising(ValueError("first\nsecond")), "ValueError: first"),
    "a service that is away": (raising(NotReady("no router")), "NotReady: no router"),
    "refused input": (raising(InvalidInput("key", 3, "Use 2.")), "key: 3 is not usable. Use 2."),
    "a deadline": (late, "not in 0 s: what never comes"),
    "a long reason": (raising(OSError("x" * 1000)), "OSError: " + "x" * 288 + "..."),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_stage_that_fails_is_one_line_and_the_next_one_runs(bench: Bench, name: str) -> None:
    run, reason = FAILURES[name]
    told = []
    reports = runner.run_stages([stage("bad", run), stage("next", good)], bench, told.append)
    assert told == reports
    assert [one.verdict for one in reports] == [Verdict.FAILED, Verdict.PASSED]
    assert reports[0].reason == reason
    assert reports[1].figures == GOOD.figures


def test_figures_of_a_stage_that_fails_are_kept(bench: Bench) -> None:
    outcome = Outcome(figures=GOOD.figures, problem="too slow")
    found = runner.run_stage(stage("slow", lambda *_: outcome), bench)
    assert (found.verdict, found.figures) == (Verdict.FAILED, GOOD.figures)


def test_what_a_machine_lacks_is_not_tried_and_says_why(bench: Bench) -> None:
    never = raising(AssertionError("it was tried"))
    stages = [
        stage("gpus", never, gpus=2),
        stage("served", never, services=True),
        stage("refused", raising(NotTried("engines on CPUs cannot sleep"))),
    ]
    reports = runner.run_stages(stages, bench, lambda _: None)
    assert {one.verdict for one in reports} == {Verdict.NOT_TRIED}
    assert [one.reason for one in reports] == [
        "GPUs needed: 2, here: 0",
        "the services do not run",
        "engines on CPUs cannot sleep",
    ]


def test_ctrl_c_is_no_failure_of_a_stage(bench: Bench) -> None:
    def interrupted(bench: Bench, deadline: Deadline) -> Outcome:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        runner.run_stage(stage("interrupted", interrupted), bench)


def test_a_program_that_measures_says_its_figures_or_its_last_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = """import sys
print("loading")
if len(sys.argv) > 1: sys.exit("first\\nno device")
print('{"rate": 2.5}')
"""
    (tmp_path / "measuring.py").write_text(program)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert measured_by("measuring", deadline=Deadline(300)) == {"rate": 2.5}
    with pytest.raises(ProgramFailed, match=r"^no device$"):
        measured_by("measuring", "--wrong", deadline=Deadline(300))


def test_a_program_that_hangs_ends_at_the_deadline() -> None:
    began = time.monotonic()
    with pytest.raises(StageLate, match=r"http\.server"):
        measured_by("http.server", "0", "--bind", "127.0.0.1", deadline=Deadline(1.0))
    assert time.monotonic() - began < 60


def arguments(folder: Path, **changes) -> argparse.Namespace:
    given = {"address": None, "stage": None, "quick": True, "json": False, "output": folder}
    return argparse.Namespace(**given | changes)


def test_the_command_writes_report_and_page_and_fails_if_a_stage_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = stage("bad", raising(ValueError("no <good>")))
    monkeypatch.setattr(every, "STAGES", (bad, stage("next", good)))
    folder = tmp_path / "out"
    assert accept.function(arguments(folder), Console(width=20)) == FAILED
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines[:2]] == [["failed", "bad"], ["passed", "next"]]
    assert "ValueError: no <good>" in lines[0]
    assert "speed 1,234 tokens/s" in lines[1]
    report = Report.read(folder / "accept.json")
    assert [one.name for one in report.failed] == ["bad"]
    assert "no &lt;good&gt;" in (folder / "accept.html").read_text()


def test_the_help_promises_no_cluster_that_is_not_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["accept", "--help"])
    told = capsys.readouterr().out
    assert "--address" in told
    assert "RAY_ADDRESS" not in told


def test_json_is_the_report_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(every, "STAGES", (stage("good", good),))
    assert accept.function(arguments(tmp_path, json=True), Console(width=20)) == 0
    printed = capsys.readouterr().out
    assert printed == (tmp_path / "accept.json").read_text()
    assert json.loads(printed)["schema_version"] == 1


def test_a_stage_that_was_interrupted_leaves_the_reports_of_those_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(bench: Bench, deadline: Deadline) -> Outcome:
        raise KeyboardInterrupt

    stages = (stage("first", good), stage("second", interrupted))
    monkeypatch.setattr(every, "STAGES", stages)
    with pytest.raises(KeyboardInterrupt):
        accept.function(arguments(tmp_path), Console(quiet=True))
    assert [one.name for one in Report.read(tmp_path / "accept.json").stages] == ["first"]


def test_stages_are_chosen_by_name_with_the_services_that_they_need() -> None:
    assert [one.name for one in every.chosen(["disk"])] == ["disk"]
    assert [one.name for one in every.chosen(["kill", "disk"])] == ["disk", "services", "kill"]
    assert every.chosen(None) == every.STAGES


def test_an_unknown_stage_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(InvalidInput, match="the nearest is sandbox"):
        every.chosen(["sandbx"])


def test_every_stage_has_a_name_of_its_own_a_purpose_and_a_deadline() -> None:
    names = [one.name for one in every.STAGES]
    assert len(set(names)) == len(names) == 18
    for one in every.STAGES:
        assert one.purpose
        assert 0 < one.deadline_s <= 1800
    started = names.index("services")
    assert all(names.index(one.name) > started for one in every.STAGES if one.services)


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match="--output"):
        accept.function(arguments(tmp_path / "file" / "out"), Console(quiet=True))
