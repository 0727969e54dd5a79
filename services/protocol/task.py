"""Task files: JSON lines, one task a line.

Anybody who may start a run may name any file as its task file, so an error says where it
is and what is expected there, and never what the file holds.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from services.protocol.errors import InvalidInput
from services.protocol.reward_service import Grader
from services.protocol.strict import StrictModel

_NOT_SHOWN = "(not shown)"


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
        InvalidInput: naming the line, the field and the fix.
    """
    tasks: list[Task] = []
    seen: set[str] = set()
    for source, row in _rows(Path(path)):
        task = _task(row, source)
        if task.task_id in seen:
            raise InvalidInput(f"{source}: task_id", _NOT_SHOWN, "It is used twice.")
        seen.add(task.task_id)
        tasks.append(task)
    for split in ("train", "heldout"):
        if not any(task.split == split for task in tasks):
            raise InvalidInput(f"{path}: split", split, "The file has no task of this split.")
    return tasks


def _task(row: Any, source: str) -> Task:
    try:
        return Task.model_validate(row)
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        place, fix = problem["loc"], problem["msg"]
        if problem["type"] == "extra_forbidden":
            place, fix = place[:-1], "There is a key that a task does not have"
        if problem["type"] == "union_tag_invalid":
            fix = f"The kind must be one of {problem['ctx']['expected_tags']}"
        field = ".".join(str(part) for part in place) or "(whole line)"
        raise InvalidInput(f"{source}: {field}", _NOT_SHOWN, f"{fix}.") from None


def _rows(path: Path) -> Iterator[tuple[str, Any]]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        fix = f"It cannot be read: {error.strerror}."
        raise InvalidInput("task file", str(path), fix) from None
    except UnicodeDecodeError:
        raise InvalidInput("task file", str(path), "It is not UTF-8 text.") from None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        source = f"{path}, line {number}"
        try:
            yield source, json.loads(line)
        except json.JSONDecodeError as error:
            raise InvalidInput(source, _NOT_SHOWN, f"It is not JSON: {error.msg}.") from None
