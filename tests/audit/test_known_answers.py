"""Answers that the user knows, faults, and one check alone."""

import json
import shlex
from pathlib import Path

import pytest
import yaml

from millrace_tools.audit.answers import turns
from millrace_tools.audit.audit import CHECKS
from millrace_tools.audit.checks.known import read_labelled_answers
from millrace_tools.deploy.run_file import read_run_file
from services.protocol.errors import InvalidInput
from services.protocol.run.task import GIVEN, Task
from tests.audit.test_audit import ROWS, audit_of, audited, row

GOOD = {"task_id": "room-1", "good": ["k1037", ["k1037", "again"]], "bad": ["k1038"]}
BAD = {"task_id": "room-2", "good": ["k9999"], "bad": ["k1074"]}


@pytest.mark.slow
def test_known_answers_are_paid_as_they_should_be(tmp_path: Path) -> None:
    (tmp_path / "answers.jsonl").write_text(json.dumps(GOOD) + "\n\n")
    only = ["reward.good", "reward.bad"]
    answers = tmp_path / "answers.jsonl"
    status, found, said = audited(tmp_path, "good", ROWS, answers=answers, only=only)
    assert status == 0, said
    assert {one["verdict"] for one in found.values()} == {"pass"}
    assert found["reward.good"]["evidence"] == "2 answers"
    answers.write_text(json.dumps(GOOD) + "\n" + json.dumps(BAD))
    status, found, said = audit_of(tmp_path, answers=answers, only=only, timeout=600)
    assert status == 1, said
    assert found["reward.good"]["evidence"] == 'room-2: "k9999" earns 0'
    assert found["reward.bad"]["evidence"] == 'room-2: "k1074" earns 1'


def test_an_answer_to_a_task_that_is_not_there_is_named(tmp_path: Path) -> None:
    answers = tmp_path / "answers.jsonl"
    answers.write_text('{"task_id": "room-99", "good": ["k"]}\n')
    status, _, said = audited(tmp_path, "good", ROWS, answers=answers, only=["reward.good"])
    assert status == 2
    assert "answers.jsonl:1: task_id" in said
    assert "room-99" in said


def test_an_answer_to_a_task_that_is_never_played_is_named(tmp_path: Path) -> None:
    answers = tmp_path / "answers.jsonl"
    answers.write_text(json.dumps(GOOD))
    given = Task.model_validate(row(1) | {"answer": "k1037"}).placed(source="", environment=GIVEN)
    with pytest.raises(InvalidInput, match=r"answers.jsonl:1: task_id: 'room-1'"):
        read_labelled_answers(str(answers), {"room-1": given})


def test_each_call_of_an_episode_has_its_own_answer() -> None:
    script, said = turns(["one", "two"]), [{"role": "user", "content": "?"}]
    answered = []
    for _ in range(3):
        answered.append(script(said))
        said = [*said, {"role": "assistant", "content": answered[-1]}]
    assert answered == ["one", "two", "two"]


def test_a_lock_that_outlives_its_process_is_found(tmp_path: Path) -> None:
    rows = [one | {"data": one["data"] | {"folder": str(tmp_path)}} for one in ROWS]
    status, found, said = audited(tmp_path, "locks", rows, only=["operations.faults"])
    assert status == 1, said
    assert ": 1, then 0" in found["operations.faults"]["evidence"]


def test_a_time_limit_that_becomes_a_reward_is_found(tmp_path: Path) -> None:
    status, found, said = audited(tmp_path, "impatient", ROWS[:2], only=["operations.faults"])
    assert status == 1, said
    assert found["operations.faults"]["evidence"].startswith("it hung for 2 s; room-")
    assert "1, then 0" in found["operations.faults"]["evidence"]


def test_one_check_alone_and_the_run_file_to_train_with(tmp_path: Path) -> None:
    status, found, said = audited(tmp_path, "good", ROWS, only=["operations.faults"])
    assert status == 0, said
    assert list(found) == ["operations.faults"]
    assert found["operations.faults"]["verdict"] == "pass", said
    words = shlex.split(found["operations.faults"]["reproduce"])
    assert words[:3] == ["millrace", "audit", str(tmp_path / "run.yaml")]
    assert words[-2:] == ["--only", "operations.faults"]
    written = tmp_path / "audit" / "run.yaml"
    assert read_run_file(written) == read_run_file(tmp_path / "run.yaml")
    assert Path(yaml.safe_load(written.read_text())["task_file"]).is_absolute()


def test_every_check_is_on_the_page_of_the_guide() -> None:
    page = (Path(__file__).parents[2] / "docs" / "audit.md").read_text(encoding="utf-8")
    assert [check for check in CHECKS if f"`{check}`" not in page] == []
