import json
from pathlib import Path
from typing import Any

import pytest

from services.json_lines import JsonLines
from services.page.reading.details.task_progress import TaskProgress, TasksQuery


def progress(path: Path, *groups: dict[str, Any]) -> TaskProgress:
    lines = ({"group": number, "step": number, **one} for number, one in enumerate(groups, 1))
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return TaskProgress(JsonLines(path))


def group(task_id: str, rewards: list[float], **labels: Any) -> dict[str, Any]:
    return {"task_id": task_id, "rewards": rewards, **labels}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "groups.jsonl"


def test_each_kind_has_its_curve_and_its_early_and_late_pass_rates(file: Path) -> None:
    tasks = progress(
        file,
        group("a", [0, 0.5], kind="maths"),
        group("b", [1, 1], kind="code"),
        group("a", [1, 0], kind="maths"),
        group("c", [1, 1], kind="maths"),
    )
    found = tasks.summary(TasksQuery())
    code, maths = found["labels"]
    assert (code["label"], code["tasks"], code["groups"], code["late"]) == ("code", 1, 1, None)
    assert (maths["tasks"], maths["groups"]) == (2, 3)
    assert (maths["early"], maths["late"]) == (0.0, 1.0)
    assert found["steps"] == [1, 2, 3, 4]
    assert maths["rate"] == [0.0, None, 0.5, 1.0]
    assert maths["reward"] == [0.25, None, 0.5, 1.0]
    assert found["available"] == ["kind", "first"], "no task says its difficulty or source"


def test_long_runs_come_as_means_over_steps(file: Path) -> None:
    tasks = progress(file, *(group("a", [step % 2, 1], kind="x") for step in range(100)))
    found = tasks.summary(TasksQuery(points=10))
    assert found["steps"] == [10 * part for part in range(1, 11)]
    assert found["labels"][0]["rate"] == [0.75] * 10


def test_difficulties_stand_in_their_order(file: Path) -> None:
    names = ("10", "9", "hard", "2.5")
    tasks = progress(file, *(group(name, [1], difficulty=name) for name in names))
    found = tasks.summary(TasksQuery(by="difficulty"))
    assert [one["label"] for one in found["labels"]] == ["2.5", "9", "10", "hard"]


def test_without_a_difficulty_the_first_pass_rate_tells_it(file: Path) -> None:
    rates = {"never": [0, 0], "half": [0, 1], "all": [1, 1]}
    tasks = progress(file, *(group(name, rewards) for name, rewards in rates.items()))
    found = tasks.summary(TasksQuery(by="first"))
    assert [one["label"] for one in found["labels"]] == ["never", "up to 75%", "more than 75%"]


def test_tasks_are_told_by_what_became_of_them(file: Path) -> None:
    seen = {
        "never": ([0, 0.9], [0, 0]),
        "always": ([1, 1], [1, 2]),
        "forgotten": ([1, 0], [0, 0]),
        "learned": ([0, 0], [1, 0]),
        "wavers": ([1, 0], [1, 0]),
    }
    groups = [group(name, rates[turn]) for turn in (0, 1) for name, rates in seen.items()]
    outcomes = progress(file, *groups).summary(TasksQuery())["outcomes"]
    assert outcomes["all"]["count"] == 5
    for name in ("never", "always", "forgotten", "learned"):
        assert [task["task_id"] for task in outcomes[name]["tasks"]] == [name]
    assert outcomes["forgotten"]["tasks"][0] == {
        "task_id": "forgotten", "groups": 2, "first": 0.5, "best": 0.5, "newest": 0.0
    }  # fmt: skip


def test_of_a_group_that_is_done_again_the_newest_line_counts(file: Path) -> None:
    tasks = progress(file, group("a", [0, 0], kind="x"))
    assert tasks.summary(TasksQuery())["labels"][0]["late"] == 0
    with file.open("a") as more:
        more.write(json.dumps({"group": 1, "step": 1, **group("a", [1, 1], kind="x")}) + "\n")
    (label,) = tasks.summary(TasksQuery())["labels"]
    assert (label["groups"], label["late"]) == (1, 1.0)


def test_many_labels_become_the_largest_and_the_others(file: Path) -> None:
    groups = [group(f"task-{i}", [1], kind=f"kind-{i}") for i in range(40)]
    groups += [group(f"more-{i}", [1], kind="often") for i in range(3)]
    labels = progress(file, *groups).summary(TasksQuery())["labels"]
    assert len(labels) == 24
    assert labels[-1]["label"] == "others"
    assert next(one["tasks"] for one in labels if one["label"] == "often") == 3


def test_lines_without_rewards_or_of_another_shape_are_passed_over(file: Path) -> None:
    file.write_text(
        '{"group": 1, "step": 1, "task_id": "a", "rewards": []}\n{"group": 2}\nnonsense\n'
    )
    tasks = TaskProgress(JsonLines(file))
    assert tasks.summary(TasksQuery())["labels"] == []
