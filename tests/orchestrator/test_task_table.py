"""Tasks of a run from JSON lines, Parquet and data sets, mixed by weight."""

import json
import tracemalloc
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from services.orchestrator.tasks.prompts import Mixture, PromptOrder
from services.orchestrator.tasks.task_table import TaskTable
from services.protocol.errors import InvalidInput
from services.protocol.run.orchestrator import RunConfig

datasets = pytest.importorskip("datasets")
parquet = pytest.importorskip("pyarrow.parquet")

GRADER = {"kind": "python_stdio", "tests": [{"stdin": "", "expected": "1"}]}
RUN = {"name": "r", "model": "m", "steps": 1, "batch_groups": 1, "group_size": 2}
COLUMNS = {"prompt": "question", "data.answer": "answer"}
"""As data sets come: a question, an answer, and more that nobody asked for."""


def rows(count: int, start: int = 0) -> list[dict[str, Any]]:
    return [
        {"question": f"{i} + 1?", "answer": str(i + 1), "level": i % 3}
        for i in range(start, start + count)
    ]


def write(path: Path, table: list[dict[str, Any]]) -> str:
    if path.suffix == ".parquet":
        import pyarrow

        parquet.write_table(pyarrow.Table.from_pylist(table), path, row_group_size=7)
    elif path.suffix:
        path.write_text("".join(json.dumps(row) + "\n" for row in table))
    else:
        datasets.Dataset.from_list(table).save_to_disk(str(path))
    return str(path)


def table(*sources: dict[str, Any], **changes: Any) -> TaskTable:
    return TaskTable(RunConfig.model_validate(RUN | {"tasks": sources} | changes))


@pytest.mark.parametrize("kind", ["tasks.jsonl", "tasks.parquet", "saved"])
def test_rows_of_any_kind_become_tasks_by_naming_their_columns(tmp_path: Path, kind: str) -> None:
    path = write(tmp_path / kind, rows(20))
    where = {"file" if "." in kind else "dataset": path, "columns": COLUMNS, "grader": GRADER}
    heldout = {"file": write(tmp_path / "h.jsonl", rows(3)), "columns": COLUMNS, "grader": GRADER}
    tasks = table(where | {"split": "train"}, heldout | {"split": "heldout"})
    assert (len(tasks.train), len(tasks.heldout), len(tasks)) == (20, 3, 23)
    task = tasks[tasks.train[13]]
    assert task.chat == [{"role": "user", "content": "13 + 1?"}]
    assert (task.data, task.split) == ({"answer": "14"}, "train")
    assert task.grader is not None


def test_a_parquet_file_with_a_tasks_own_columns_needs_no_mapping(tmp_path: Path) -> None:
    own = [
        {
            "task_id": f"{split}-{i}",
            "split": split,
            "messages": [{"role": "user", "content": str(i)}],
        }
        for split in ("train", "heldout")
        for i in range(2)
    ]
    source = {"file": write(tmp_path / "own.parquet", own), "grader": GRADER}
    assert list(table(source).train) == ["train-0", "train-1"]


def test_a_null_in_a_table_is_a_key_that_is_left_out(tmp_path: Path) -> None:
    own = [
        {"task_id": None, "split": "heldout" if i else None, "grader": None, "question": str(i)}
        for i in range(2)
    ]
    columns = {"prompt": "question"} | {name: name for name in ("task_id", "split", "grader")}
    file = write(tmp_path / "own.parquet", own)
    tasks = table({"file": file, "columns": columns, "grader": GRADER, "split": "train"})
    assert (list(tasks.train), list(tasks.heldout)) == ([f"{file}:1"], [f"{file}:2"])
    assert all(tasks[one].grader is not None for one in tasks)


@pytest.mark.parametrize(
    ("change", "columns", "field", "value", "fix"),
    [
        ({"question": 7}, COLUMNS, "row 9: messages.0.content", 7, "valid string"),
        ({}, COLUMNS | {"task_id": "id"}, "row 1", "id", "no such column"),
        ({"level": "hard"}, COLUMNS | {"split": "level"}, "row 9: split", "hard", "'heldout'"),
        ({}, COLUMNS | {"task_id": "kind"}, "row 2: task_id", "same", "used twice"),
    ],
)
def test_a_schema_error_names_file_row_and_field(
    tmp_path: Path, change: dict, columns: dict, field: str, value: object, fix: str
) -> None:
    some = [row | {"kind": "same", "level": "train"} for row in rows(12)]
    some[8] |= change
    path = tmp_path / "bad.jsonl"
    write(path, some)
    source = {"file": str(path), "columns": columns, "grader": GRADER, "split": "train"}
    with pytest.raises(InvalidInput) as caught:
        table(source)
    problem = caught.value
    assert problem.field == f"{path}, {field.replace('row', 'line')}"
    assert (problem.value, fix in problem.fix) == (value, True), problem.fix


@pytest.mark.parametrize(
    ("source", "part"),
    [
        ({"file": "none.parquet"}, "cannot be read"),
        ({"file": "text.parquet"}, "not Parquet"),
        ({"dataset": "nowhere"}, "cannot load it"),
    ],
)
def test_what_cannot_be_read_is_said(tmp_path: Path, source: dict, part: str) -> None:
    (tmp_path / "text.parquet").write_text("no magic number here at all")
    ((key, name),) = source.items()
    with pytest.raises(InvalidInput, match=part):
        table({key: str(tmp_path / name)})


@pytest.mark.parametrize(
    "changes",
    [
        {"tasks": []},
        {"task_file": "a.jsonl", "tasks": [{"file": "b.jsonl"}]},
        {"tasks": [{"file": "a", "dataset": "b"}]},
        {"tasks": [{"file": "a", "columns": {"promt": "question"}}]},
        {"tasks": [{"file": "a", "weight": 0}]},
    ],
)
def test_a_run_file_says_once_where_its_tasks_are(changes: dict) -> None:
    with pytest.raises(InvalidInput):
        RunConfig.from_data(RUN | changes, source="run")


def test_rows_stay_where_they_lie(tmp_path: Path) -> None:
    filler = "x" * 20_000
    big = [row | {"answer": filler + row["answer"]} for row in rows(500)]
    source = {"columns": COLUMNS, "grader": GRADER, "split": "train"}
    heldout = {"file": write(tmp_path / "h.jsonl", rows(1)), "columns": COLUMNS, "grader": GRADER}
    for name in ("big.jsonl", "big.parquet"):
        path = write(tmp_path / name, big)
        tracemalloc.start()
        tasks = table(source | {"file": path}, heldout | {"split": "heldout"})
        for task_id in tasks.train:
            assert tasks[task_id].data["answer"].startswith("x")
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 3_000_000, "of ten million characters"


def test_a_file_that_is_replaced_does_not_change_a_run_in_progress(tmp_path: Path) -> None:
    source = {"columns": COLUMNS, "grader": GRADER, "file": write(tmp_path / "t.jsonl", rows(5))}
    heldout = source | {"file": write(tmp_path / "h.jsonl", rows(1)), "split": "heldout"}
    tasks = table(source | {"split": "train"}, heldout)
    write(tmp_path / "new.jsonl", rows(1, start=70))
    (tmp_path / "new.jsonl").replace(tmp_path / "t.jsonl")
    assert tasks[tasks.train[4]].data == {"answer": "5"}


def test_every_source_has_its_share_at_any_time_and_no_prompt_is_skipped_or_repeated() -> None:
    counts, weights = [10, 4, 7], [3.0, 1.0, 0.5]
    mixture = Mixture(seed=5, counts=counts, weights=weights)
    owner = [source for source, count in enumerate(counts) for _ in range(count)]
    order = [mixture.at(position) for position in range(450)]
    taken: Counter[int] = Counter()
    for position, (_, index) in enumerate(order, start=1):
        taken[owner[index]] += 1
        for source, weight in enumerate(weights):
            assert abs(taken[source] - position * weight / sum(weights)) <= 1
    for source, count in enumerate(counts):
        for epoch in range(3):
            mine = [i for e, i in order if owner[i] == source and e == epoch]
            assert len(set(mine)) == count == len(mine), "whole epochs, each prompt once"


def test_a_resumed_mixture_goes_on_exactly_where_it_was() -> None:
    parts: dict[str, Any] = {"seed": 1, "counts": [5, 0, 9], "weights": [1.0, 7.0, 0.3]}
    whole = [Mixture(**parts).at(position) for position in range(60)]
    for start in (0, 1, 17, 59):
        resumed = Mixture(**parts)
        assert [resumed.at(position) for position in range(start, 60)] == whole[start:]
    assert resumed.at(3) == whole[3], "and it can go back"


def test_one_source_is_in_the_order_that_it_always_had() -> None:
    mixture, order = Mixture(seed=3, counts=[7], weights=[2.0]), PromptOrder(seed=3, count=7)
    assert [mixture.at(i) for i in range(30)] == [order.at(i) for i in range(30)]
