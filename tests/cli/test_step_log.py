"""Every train step is shown once, however seldom one looks."""

import io
import json
import os
from pathlib import Path

import pytest
from rich.console import Console

from millrace_tools.client.runs_client import RunsClient
from millrace_tools.run.follow import follow
from millrace_tools.run.run_view import RunView
from millrace_tools.run.step_log import StepLog
from services.protocol.run.orchestrator import Finding, RunState
from tests.cli.conftest import Orchestra


def _line(step: int, elapsed_s: float, heldout: float | None = None) -> str:
    fields = {
        "step": step,
        "reward": step / 100,
        "heldout_pass_rate": heldout,
        "policy_version": step,
        "staleness_max": 1,
        "elapsed_s": elapsed_s,
    }
    return json.dumps(fields) + "\n"


@pytest.fixture
def file(orchestra: Orchestra) -> Path:
    return orchestra.run_dir / "metrics.jsonl"


def _append(file: Path, text: str) -> None:
    with file.open("a") as opened:
        opened.write(text)


def _new(log: StepLog, orchestra: Orchestra) -> list[int]:
    return [step.number for step in log.new(orchestra.status())]


def test_steps_between_two_looks_are_all_given_out_once(orchestra: Orchestra, file: Path) -> None:
    log = StepLog(str(orchestra.run_dir))
    file.write_text(_line(1, 1.0) + _line(2, 2.0))
    assert _new(log, orchestra) == [1, 2]
    assert _new(log, orchestra) == []
    _append(file, _line(3, 3.0) + _line(4, 4.0)[:20])
    assert _new(log, orchestra) == [3]
    _append(file, _line(4, 4.0)[20:])
    assert _new(log, orchestra) == [4]


def test_what_was_done_before_a_resumption_is_not_new(orchestra: Orchestra, file: Path) -> None:
    file.write_text(_line(1, 1.0) + _line(2, 2.0))
    log = StepLog(str(orchestra.run_dir))
    _append(file, _line(3, 9.0))
    assert _new(log, orchestra) == [3]


def test_steps_that_are_done_again_are_given_out_again(orchestra: Orchestra, file: Path) -> None:
    log = StepLog(str(orchestra.run_dir))
    file.write_text(_line(1, 1.0) + _line(2, 2.0) + _line(3, 3.0))
    assert _new(log, orchestra) == [1, 2, 3]
    beside = file.with_suffix(".new")
    beside.write_text(_line(1, 1.0) + _line(2, 7.0))
    os.replace(beside, file)
    assert _new(log, orchestra) == [2]


def test_without_the_file_the_status_is_what_is_known(orchestra: Orchestra) -> None:
    log = StepLog(str(orchestra.run_dir))
    shown = [
        [step.number for step in log.new(status)]
        for status in (
            orchestra.status(step=0, reward=None),
            orchestra.status(step=1),
            orchestra.status(step=1),
            orchestra.status(step=3),
            orchestra.finished(),
        )
    ]
    assert shown == [[], [1], [], [3], []]


def test_a_followed_run_shows_each_step_with_the_newest_evaluation(
    orchestra: Orchestra, file: Path
) -> None:
    first = orchestra.status(state=RunState.STARTING, heldout_pass_rate=None, detail="waiting")
    again = orchestra.status(
        step=3, state=RunState.EVALUATING, detail="after step 3", heldout_pass_rate=0.1
    )
    orchestra.statuses = [again, orchestra.finished()]
    lines = [_line(n, float(n), 0.5 if n == 3 else None) for n in (1, 2, 3, 4)]
    written = ["".join(lines[:2]), "".join(lines[2:])]
    asked = orchestra.answer

    def answer(method: str, path: str, body: object) -> tuple[int, object]:
        _append(file, written.pop(0) if written else "")
        return asked(method, path, body)

    orchestra.answer = answer  # type: ignore[method-assign]
    screen = io.StringIO()
    with RunsClient(orchestra.url) as client:
        follow(client, first, Console(file=screen, width=200), poll_s=0.0)
    shown = [line.rstrip() for line in screen.getvalue().splitlines()]
    assert shown == [
        "starting: waiting",
        "step 1/2  reward 0.01  version 1  staleness 1",
        "step 2/2  reward 0.02  version 2  staleness 1",
        "evaluating: after step 3",
        "step 3/2  reward 0.03  held-out 0.50  version 3  staleness 1",
        "step 4/2  reward 0.04  held-out 0.50  version 4  staleness 1",
        "finished: all done",
    ]


def test_a_step_line_shows_the_filtered_share_and_a_warning_comes_once(
    orchestra: Orchestra, file: Path
) -> None:
    found = Finding(kind="equal_rewards", text="9 of 12 taught nothing", advice="Try easier tasks")
    still = found.model_copy(update={"text": "12 of 16 taught nothing"})
    orchestra.statuses = [
        orchestra.status(step=1, findings=[found]),
        orchestra.status(step=2),
        orchestra.status(step=2, findings=[still]),
        orchestra.finished(),
    ]
    first = orchestra.statuses.pop(0)
    ledgers = [{"trained": 1, "filtered": 3}, {"trained": 2, "filtered": 3}]
    log = StepLog(str(orchestra.run_dir))
    steps = []
    for number, ledger in enumerate(ledgers, 1):
        _append(file, json.dumps(json.loads(_line(number, float(number))) | {"ledger": ledger}))
        _append(file, "\n")
        steps.append(log.new(first))
    screen = io.StringIO()
    with RunView(Console(file=screen, width=200)) as view:
        view.show(first, steps[0])
        for status in orchestra.statuses:
            view.show(status, steps[1] if status is orchestra.statuses[0] else [])
    assert [line.rstrip() for line in screen.getvalue().splitlines()] == [
        "step 1/2  reward 0.01  filtered 75%  version 1  staleness 1",
        "warning: 9 of 12 taught nothing. Try easier tasks.",
        "step 2/2  reward 0.02  filtered 0%  version 2  staleness 1",
        "finished: all done",
    ]


def test_the_first_step_after_a_resumption_has_its_own_filtered_share(
    orchestra: Orchestra, file: Path
) -> None:
    before = {"trained": 3, "filtered": 1}
    log = StepLog(str(orchestra.run_dir))
    line = json.loads(_line(1, 1.0)) | {"ledger": {"trained": 4, "filtered": 2}}
    screen = io.StringIO()
    with RunView(Console(file=screen, width=200)) as view:
        resumed = orchestra.status(state=RunState.STARTING)
        assert resumed.ledger.model_dump().items() >= before.items()
        view.show(resumed, log.new(resumed))
        _append(file, json.dumps(line) + "\n")
        view.show(orchestra.status(step=1), log.new(orchestra.status(step=1)))
    assert "filtered 50%" in screen.getvalue()


def test_versions_that_are_not_the_runs_steps_are_explained_once(orchestra: Orchestra) -> None:
    screen = io.StringIO()
    with RunView(Console(file=screen, width=200)) as view:
        for step, version in ((0, 21), (1, 22)):
            view.show(orchestra.status(step=step, policy_version=version), [])
    assert screen.getvalue().count("is step ") == 1
    assert "policy version 21 is step 0 of this run: versions count" in screen.getvalue()
