"""Task files: JSON lines, one task a line."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from services.protocol.errors import InvalidInput
from services.protocol.reward_service import Grader
from services.protocol.strict import StrictModel

_NOT_SHOWN = "(not shown)"


class Message(StrictModel):
    """One OpenAI chat message of text."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[dict[str, Any]] | None = None


class Task(StrictModel):
    """One prompt and how its answers are graded.

    Attributes:
        task_id: unique in the file.
        messages: the prompt.
        split: `train` tasks are learned from; `heldout` tasks are only measured.
        grader: how an answer is graded.
    """

    task_id: str = Field(min_length=1)
    messages: list[Message] = Field(min_length=1)
    split: Literal["train", "heldout"]
    grader: Grader

    @property
    def chat(self) -> list[dict[str, Any]]:
        """The messages as they stand in the file and are sent."""
        return [message.model_dump(exclude_unset=True) for message in self.messages]


def load_tasks(path: str | Path, *, quote: bool = True) -> list[Task]:
    """Read a task file.

    Anybody who may start a run may name any file as its task file. A service that reads it
    for a client says `quote=False`: an error then says where it is and what is expected
    there, and never what the file holds.

    Raises:
        InvalidInput: naming the line, the field or key, and the fix.
    """
    tasks: list[Task] = []
    seen: set[str] = set()
    for source, line in _lines(Path(path)):
        task = _task(line, source, quote=quote)
        if task.task_id in seen:
            shown = task.task_id if quote else _NOT_SHOWN
            raise InvalidInput(f"{source}: task_id", shown, "It is used twice.")
        seen.add(task.task_id)
        tasks.append(task)
    for split in ("train", "heldout"):
        if not any(task.split == split for task in tasks):
            raise InvalidInput(f"{path}: split", split, "The file has no task of this split.")
    return tasks


def _task(line: str, source: str, *, quote: bool) -> Task:
    try:
        return Task.model_validate(json.loads(line))
    except json.JSONDecodeError as error:
        fix = f"It is not JSON: {error.msg} at column {error.colno}."
        raise InvalidInput(source, line if quote else _NOT_SHOWN, fix) from None
    except ValidationError as error:
        raise _problem(error, source, quote=quote) from None


def _problem(error: ValidationError, source: str, *, quote: bool) -> InvalidInput:
    """The first unknown key, else the first of all: a misspelt key is why one is missing.

    Of a key that is missing or unknown there is no value to show: it stands there itself.
    """
    problems = error.errors(include_url=False)
    unknown = (problem for problem in problems if problem["type"] == "extra_forbidden")
    problem = next(unknown, problems[0])
    kind, place = problem["type"], [str(part) for part in problem["loc"]]
    value, fix = problem["input"], problem["msg"].removeprefix("Value error, ")
    if kind == "missing":
        value, fix = place.pop(), "This key is missing"
    elif kind == "union_tag_not_found":
        value, fix = "kind", "This key is missing"
    elif kind == "extra_forbidden":
        value, fix = place.pop(), "No such key; check its spelling and its place"
    elif kind == "union_tag_invalid":
        place.append("kind")
        value, fix = value["kind"], f"It must be one of {problem['ctx']['expected_tags']}"
    field = f"{source}: {'.'.join(place)}" if place else source
    shown = quote or kind in ("missing", "union_tag_not_found")
    return InvalidInput(field, value if shown else _NOT_SHOWN, f"{fix}.")


def _lines(path: Path) -> Iterator[tuple[str, str]]:
    """Each line that is not empty, and what an error message calls it."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        fix = f"It cannot be read: {error.strerror}."
        raise InvalidInput("task file", str(path), fix) from None
    except UnicodeDecodeError:
        raise InvalidInput("task file", str(path), "It is not UTF-8 text.") from None
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield f"{path}, line {number}", line
