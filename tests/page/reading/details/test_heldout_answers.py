import json
from pathlib import Path
from typing import Any

import pytest

from services.json_lines import JsonLines
from services.page.reading.details.heldout_answers import HeldOutAnswers, HeldOutQuery


def line(step: int, task_id: str, reward: float | None, **more: Any) -> str:
    known = {"set": "heldout", "step": step, "task_id": task_id, "reward": reward}
    return json.dumps(known | {"answer": f"{task_id} at {step}"} | more) + "\n"


@pytest.fixture
def answers(tmp_path: Path) -> HeldOutAnswers:
    path = tmp_path / "heldout_answers.jsonl"
    before = {"a": 0.0, "b": 1.0, "c": 1.0, "d": None}
    after = {"a": 1.0, "b": 0.0, "c": 1.0, "d": 0.5}
    text = "".join(line(0, task, reward) for task, reward in before.items())
    text += "".join(line(10, task, 0.0) for task in before)
    text += "".join(line(20, task, reward) for task, reward in after.items())
    path.write_text(text + line(20, "z", 1.0, set="other"))
    return HeldOutAnswers(JsonLines(path))


def test_the_first_and_the_newest_answer_stand_next_to_each_other(
    answers: HeldOutAnswers,
) -> None:
    found = answers.compared(HeldOutQuery())
    assert (found["sets"], found["steps"]) == (["heldout", "other"], [0, 10, 20])
    assert (found["before"], found["after"], found["total"]) == (0, 20, 4)
    assert found["counts"] == {"gained": 1, "lost": 1, "both": 1, "neither": 1}
    first = found["tasks"][0]
    assert (first["task_id"], first["change"]) == ("a", "gained")
    assert (first["before"]["answer"], first["after"]["answer"]) == ("a at 0", "a at 20")


def test_a_change_a_step_and_a_set_are_chosen(answers: HeldOutAnswers) -> None:
    lost = answers.compared(HeldOutQuery(change="lost"))
    assert [task["task_id"] for task in lost["tasks"]] == ["b"]
    middle = answers.compared(HeldOutQuery(after=10))
    assert middle["counts"]["lost"] == 2
    other = answers.compared(HeldOutQuery(name="other"))
    assert (other["before"], other["after"], other["total"]) == (20, 20, 1)
    assert answers.compared(HeldOutQuery(limit=1, offset=3))["tasks"][0]["task_id"] == "d"


def test_a_run_without_answers_has_none(tmp_path: Path) -> None:
    found = HeldOutAnswers(JsonLines(tmp_path / "none.jsonl")).compared(HeldOutQuery())
    assert (found["before"], found["tasks"]) == (None, [])
