"""Held-out sets, phases and the time left, as they stand on a terminal."""

import io

import pytest
from rich.console import Console

from millrace_tools.run.run_summary import show_summary
from millrace_tools.run.run_view import RunView
from millrace_tools.run.status import show_run
from millrace_tools.run.step_log import Step
from services.protocol.run.evaluation import Evaluation
from services.protocol.run.orchestrator import RunState
from tests.cli.conftest import Orchestra

HARD = Evaluation(
    name="hard",
    step=20,
    tasks=3,
    samples=4,
    temperature=0.6,
    graded=3,
    answers=12,
    pass_at={1: 0.25, 2: 0.5, 4: 0.75},
    reward=0.3,
    oldest_version=21,
    newest_version=22,
    tokens=99,
    seconds=1.0,
)


def terminal() -> Console:
    return Console(
        file=io.StringIO(),
        width=120,
        force_terminal=True,
        color_system=None,
        _environ={"TERM": "xterm"},
    )


def shown(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_status_and_summary_have_pass_at_k_and_avg_at_k_of_each_set(orchestra: Orchestra) -> None:
    console = terminal()
    show_run(orchestra.status(evaluations=[HARD]), console)
    line = "pass@1 0.25  pass@2 0.50  pass@4 0.75  avg@4 0.30"
    assert f"hard               {line}  after step 20" in shown(console)
    ended = orchestra.finished()
    assert ended.summary is not None
    told = ended.summary.model_copy(update={"evaluations_after": [HARD]})
    console = terminal()
    show_summary(ended.model_copy(update={"summary": told}), [], console)
    assert line in shown(console)


def test_the_live_view_says_where_time_goes_and_what_is_left(orchestra: Orchestra) -> None:
    console = terminal()
    step = Step(
        number=1,
        reward=0.5,
        heldout=None,
        policy_version=2,
        staleness=1.0,
        seconds={"wait": 3.0, "train": 1.0, "save": 0.0},
        elapsed_s=4.0,
    )
    with RunView(console) as view:
        view.show(orchestra.status(evaluations=[HARD], seconds_left=3725.0), [step])
    assert "4.0 s: wait 75%, train 25%" in shown(console)
    assert "1 h 02 min" in shown(console)
    assert "held-out, hard" in shown(console)


@pytest.mark.parametrize("moves", [True, False], ids=["a terminal", "a pipe"])
def test_what_a_run_says_of_itself_is_no_markup(orchestra: Orchestra, moves: bool) -> None:
    console = terminal() if moves else Console(file=io.StringIO(), width=200)
    said = "unexpected KeyError: [/run/1] is not [dim] enough"
    with RunView(console) as view:
        view.show(orchestra.status(state=RunState.RECOVERING, detail=said), [])
    assert said in shown(console)
