"""Task files: JSON lines, one task a line."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from services.protocol.errors import InvalidInput
from services.protocol.reward_service import Grader
from services.protocol.strict import StrictModel


class Task(StrictModel):
    """One prompt and how its answers are graded.

    Attributes:
        task_id: unique in the file.
        messages: OpenAI chat messages, sent as they are.
        split: `train` tasks are learned from; `heldout` tasks are only measured.
        grader: how an answer is graded.
    """

    task_id: str = Field(min_length=1)
    messages: list[dict[str, Any]] = Field(min_length=1)
    split: Literal["train", "heldout"]
    grader: Grader


def load_tasks(path: str | Path) -> list[Task]:
    """Read a task file.

    Raises:
        InvalidInput: naming the line, field, value and fix.
    """
    tasks: list[Task] = []
    seen: set[str] = set()
    for source, row in _rows(Path(path)):
        task = Task.from_data(row, source=source)
        if task.task_id in seen:
            raise InvalidInput(f"{source}: task_id", task.task_id, "It is used twice.")
        seen.add(task.task_id)
        tasks.append(task)
    for split in ("train", "heldout"):
        if not any(task.split == split for task in tasks):
            raise InvalidInput(f"{path}: split", split, "The file has no task of this split.")
    return tasks


def _rows(path: Path) -> Iterator[tuple[str, Any]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput("task file", str(path), f"It cannot be read: {error}.") from None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        source = f"{path}, line {number}"
        try:
            yield source, json.loads(line)
        except json.JSONDecodeError as error:
            raise InvalidInput(source, line[:60], f"It is not JSON: {error.msg}.") from None
