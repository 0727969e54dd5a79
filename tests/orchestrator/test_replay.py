"""A run's decisions are written down, and come out the same when they are taken again."""

import json
from collections.abc import Callable
from dataclasses import replace as changed
from pathlib import Path

import pytest

from millrace_tools.main import main
from services.orchestrator.core.replay import replay
from services.orchestrator.core.schedule import Schedule
from services.orchestrator.observers.decision_log import DecisionLog
from services.protocol.errors import InvalidInput
from services.protocol.run.schedule import ScheduleConfig
from tests.orchestrator.random_schedule import draw, play

SYNC = {"schedule": {"preset": "sync"}, "batch_groups": 1}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a streamed run whose orchestrator was killed at least once."""
    plan = draw(3)
    weather = changed(plan.weather, killed_s=20.0, trainer_dies=0.2)
    plan = changed(plan, schedule={"preset": "stream"}, weather=weather)
    life, status = play(plan, tmp_path_factory.mktemp("recorded"))
    assert life.witness.problems == []
    assert life.kills > 0
    return Path(status.run_dir)


pytestmark = pytest.mark.usefixtures("no_drawing")


def test_a_recorded_run_with_kills_replays_to_the_same_decisions(recorded: Path) -> None:
    played = replay(recorded / "decisions.jsonl")
    assert played.difference is None
    assert played.decisions["begin"] > 1
    for method in ("admit", "rolled_out", "ready", "select", "interrupted", "published", "live"):
        assert played.decisions[method] > 0, method


def other_rewards(line: list) -> bool:
    if line[0] == "ready" and line[1]["trainable"]:
        line[1]["trainable"] = False
        return True
    return False


def other_batch(line: list) -> bool:
    if line[0] == "select" and line[2]:
        line[2]["train"] = line[2]["train"][1:]
        return True
    return False


def unknown_decision(line: list) -> bool:
    line[0] = "guess"
    return True


@pytest.mark.parametrize(
    ("tamper", "said"),
    [
        (other_rewards, "was"),
        (other_batch, "select(trainer_version="),
        (unknown_decision, "not a decision"),
    ],
)
def test_the_first_decision_that_differs_is_named(
    recorded: Path,
    tmp_path: Path,
    tamper: Callable[[list], bool],
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = (recorded / "decisions.jsonl").read_text().split("\n")
    for number, text in enumerate(lines):
        if text and not text.startswith('["begin"') and tamper(line := json.loads(text)):
            lines[number] = json.dumps(line)
            break
    (tmp_path / "decisions.jsonl").write_text("\n".join(lines))
    assert main(["replay", str(tmp_path)]) == 1
    played = replay(tmp_path / "decisions.jsonl")
    assert played.difference is not None
    assert said in played.difference
    assert played.difference in capsys.readouterr().out


def test_a_line_that_is_not_one_is_a_difference_unless_a_kill_cut_it_short(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    begin = json.dumps(["begin", SYNC, None]) + "\n"
    path.write_text(begin + '["admit", {"group\n' + begin)
    assert replay(path).difference is None
    path.write_text(begin + '["admit", {"group\n' + '["went_back", {}, []]\n')
    assert "line 2 cannot be read" in (replay(path).difference or "")


def test_a_log_is_bounded_and_says_that_it_is_full(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    log = DecisionLog(path, max_bytes=1000)
    log.open(SYNC)
    schedule = Schedule(ScheduleConfig(), batch_groups=1, listener=log.hear)
    for group in range(100):
        schedule.admit(group, 1)
        schedule.close(group)
    log.close()
    assert path.stat().st_size < 1100
    played = replay(path)
    assert played.full
    assert played.difference is None
    assert 0 < played.decisions["admit"] < 100


def test_the_same_answer_to_the_same_question_is_written_once(tmp_path: Path) -> None:
    path = tmp_path / "decisions.jsonl"
    log = DecisionLog(path)
    log.open(SYNC)
    schedule = Schedule(ScheduleConfig(), batch_groups=1, listener=log.hear)
    for _ in range(3):
        schedule.live(1)
        schedule.free_slots(steps_left=9)
        schedule.select(1)
    schedule.admit(1, 1)
    schedule.select(1)
    log.close()
    assert replay(path).decisions == {
        "begin": 1,
        "live": 1,
        "free_slots": 1,
        "select": 2,
        "admit": 1,
    }


def test_a_folder_without_decisions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="Give the directory of a run"):
        replay(tmp_path / "decisions.jsonl")
