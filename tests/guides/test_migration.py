"""The tables for those who come from elsewhere name keys that there are."""

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from services.orchestrator.tasks.task_table import load_tasks
from services.protocol.run.orchestrator import RunConfig
from services.protocol.run.task import TaskSource
from tests.guides.documents import ARGUMENTS

PAGE = (Path(__file__).parents[2] / "docs" / "migrating.md").read_text(encoding="utf-8")


def _exists(key: str) -> bool:
    """Whether a dotted key is one of a run file, or of a service's arguments."""
    first, _, rest = key.partition(".")
    if first in ARGUMENTS:
        return rest in ARGUMENTS[first].model_fields
    if first == "tasks" and rest:
        return rest in TaskSource.model_fields
    model: type[BaseModel] = RunConfig
    *path, last = key.split(".")
    for name in path:
        inner = model.model_fields[name].annotation if name in model.model_fields else None
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return False
        model = inner
    return last in model.model_fields


def test_every_key_of_ours_is_one() -> None:
    rows = [line.split(" | ") for line in PAGE.splitlines() if line.startswith("| `")]
    keys = [key for row in rows for key in re.findall(r"`([\w.]+)`", row[1]) if key != "weighted"]
    assert len(keys) > 50
    assert [key for key in keys if not _exists(key)] == []
    assert not _exists("algorithm.no_such_key")


def test_rows_of_verls_data_become_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    rows = [
        {
            "data_source": "openai/gsm8k",
            "prompt": [{"role": "user", "content": "What is 6 times 7?"}],
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": "42"},
            "extra_info": {"split": "train", "index": 0},
        }
    ]
    for file in ("train.parquet", "test.parquet"):
        parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / file)
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(block, "migrating.md", "exec"), {})
    task, heldout = load_tasks("tasks.jsonl")
    assert (task.split, heldout.split) == ("train", "heldout")
    assert task.messages[0].content == "What is 6 times 7?"
    assert task.grader is not None
    assert (task.grader.kind, getattr(task.grader, "expected", None)) == ("maths", "42")
