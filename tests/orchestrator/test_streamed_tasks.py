"""Streamed sources: read when their turn comes, in an order that is shuffled and resumable."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from services.orchestrator.tasks.prompts import WINDOW, BlockOrder
from services.orchestrator.tasks.task_table import TaskTable
from services.protocol.errors import InvalidInput
from services.protocol.run.orchestrator import RunConfig, RunState
from tests.orchestrator.fakes import run_to_end, world
from tests.orchestrator.test_task_table import COLUMNS, GRADER, RUN, rows, write

pytestmark = pytest.mark.usefixtures("no_drawing")

BLOCKS = [7, 3, 9, 1, 5, 8, 4, 6, 2]


def test_an_epoch_of_blocks_has_every_prompt_once_and_few_blocks_open() -> None:
    order, count = BlockOrder(seed=3, blocks=BLOCKS), sum(BLOCKS)
    block_of = [block for block, size in enumerate(BLOCKS) for _ in range(size)]
    epochs = [[order.at(e * count + i)[1] for i in range(count)] for e in range(2)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(count))] * 2
    assert epochs[0] != epochs[1]
    opened = [block_of[prompt] for prompt in epochs[0]]
    windows: list[set[int]] = [set()]
    for block in opened:
        if block not in windows[-1] and len(windows[-1]) == WINDOW:
            windows.append(set())
        windows[-1].add(block)
    assert len(windows) == 3, "no block is opened again later"
    assert opened != sorted(opened)


def test_the_order_of_blocks_is_a_function_of_seed_and_position() -> None:
    whole = [BlockOrder(seed=3, blocks=BLOCKS).at(i) for i in range(200)]
    assert [BlockOrder(seed=3, blocks=BLOCKS).at(i) for i in (150, 3, 99)] == [
        whole[150],
        whole[3],
        whole[99],
    ]
    assert [BlockOrder(seed=4, blocks=BLOCKS).at(i) for i in range(200)] != whole


def streamed(
    tmp_path: Path, kind: str, table: list[dict[str, Any]] | None = None, **source: Any
) -> TaskTable:
    path = write(tmp_path / kind, table or rows(30))
    train = {"file" if "." in kind else "dataset": path, "columns": COLUMNS, "grader": GRADER}
    heldout = {"file": write(tmp_path / "h.jsonl", rows(2)), "columns": COLUMNS, "grader": GRADER}
    sources = [train | {"split": "train", "stream": True} | source, heldout | {"split": "heldout"}]
    return TaskTable(RunConfig.model_validate(RUN | {"tasks": sources}))


@pytest.mark.parametrize("kind", ["s.jsonl", "s.parquet", "saved"])
def test_a_streamed_source_gives_the_tasks_that_it_would_give_otherwise(
    tmp_path: Path, kind: str
) -> None:
    tasks = streamed(tmp_path, kind)
    assert (len(tasks.train), len(tasks.heldout), len(list(tasks))) == (30, 2, 32)
    mixture = tasks.mixture(0)
    met = [tasks[tasks.train[mixture.at(position)[1]]] for position in range(30)]
    assert Counter(task.chat[0]["content"] for task in met) == {f"{i} + 1?": 1 for i in range(30)}
    assert all(tasks[task.task_id] == task for task in met)
    assert [task.task_id for task in met] != list(tasks.train)


def test_rows_are_read_when_their_turn_comes_and_a_bad_one_is_named_then(tmp_path: Path) -> None:
    table = rows(30)
    table[8]["questiom"] = table[8].pop("question")
    tasks = streamed(tmp_path, "s.jsonl", table)
    file = tmp_path / "s.jsonl"
    assert tasks[tasks.train[7]].data == {"answer": "8"}
    with pytest.raises(InvalidInput) as caught:
        _ = tasks[tasks.train[8]]
    assert (caught.value.field, caught.value.value) == (f"{file}, line 9", "question")


def test_what_cannot_be_streamed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="stream needs a split"):
        streamed(tmp_path, "s.jsonl", split=None)
    with pytest.raises(InvalidInput, match="no such column"):
        streamed(tmp_path, "s.jsonl", columns={"prompt": "text"})


def test_rows_that_are_streamed_are_in_no_other_source(tmp_path: Path) -> None:
    source = {"file": write(tmp_path / "s.jsonl", rows(4)), "columns": COLUMNS, "grader": GRADER}
    train, heldout = source | {"split": "train"}, source | {"split": "heldout"}
    for streamed in (0, 1):
        sources = [train, heldout]
        sources[streamed] = sources[streamed] | {"stream": True}
        with pytest.raises(InvalidInput, match="Another source has the same rows"):
            TaskTable(RunConfig.model_validate(RUN | {"tasks": sources}))


def test_two_configurations_of_a_data_set_are_two_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    def load(name: str, config: str, *, split: str) -> datasets.Dataset:
        return datasets.Dataset.from_list([{"question": f"{config}?", "answer": "1"}])

    monkeypatch.setattr(datasets, "load_dataset", load)
    base = {"dataset": "nowhere/sums", "columns": COLUMNS, "grader": GRADER}
    sources = [
        base | {"dataset_config": "easy", "split": "train", "stream": True},
        base | {"dataset_config": "hard", "split": "heldout"},
    ]
    tasks = TaskTable(RunConfig.model_validate(RUN | {"tasks": sources}))
    assert list(tasks.train) == ["nowhere/sums (easy, train):1"]
    assert list(tasks.heldout) == ["nowhere/sums (hard, train):1"]
    assert {tasks[one].chat[0]["content"] for one in tasks} == {"easy?", "hard?"}


async def test_a_run_over_a_stream_resumes_where_it_was(tmp_path: Path) -> None:
    async with world(tmp_path) as cluster:
        lines = cluster.task_file.read_text().splitlines()
        train = [json.loads(line) for line in lines if '"train"' in line]
        for row in train:
            del row["task_id"]
        stream = tmp_path / "stream.jsonl"
        stream.write_text("".join(json.dumps(row) + "\n" for row in train))
        heldout = tmp_path / "heldout.jsonl"
        heldout.write_text("\n".join(line for line in lines if '"heldout"' in line))
        sources = [{"file": str(stream), "split": "train", "stream": True}, {"file": str(heldout)}]
        config = cluster.run_config(task_file=None, tasks=sources, steps=3)
        first = await run_to_end(cluster, config)
        later = cluster.run_config(task_file=None, tasks=sources, steps=6)
        status = await run_to_end(cluster, later, resume=first.run_id)
        assert (status.state, status.step) == (RunState.FINISHED, 6), status.detail
        asked = Counter(
            one.body["messages"][0]["content"] for one in cluster.router.asked if one.body["n"] > 1
        )
        assert asked == {f"train {i}": 1 for i in range(24)}
