"""Tasks: where a run takes them from, and which it prefers to learn from."""

import re
from typing import Annotated, Any, Literal, Self

from pydantic import Field, PrivateAttr, ValidationError, model_validator

from services.protocol.errors import InvalidInput
from services.protocol.reward.grader import Grader, with_question
from services.protocol.strict import StrictModel, nearest

NOT_SHOWN = "(not shown)"
_MAPPED = ("task_id", "split", "messages", "prompt", "grader", "answer", "kind", "difficulty")


class Message(StrictModel):
    """One OpenAI chat message of text.

    Attributes:
        role: who speaks.
        content: the text.
        name: of the speaker, where the chat template shows it.
        tool_call_id: of a tool's answer: the call that it answers.
        tool_calls: of an assistant's message: the calls that it makes, in OpenAI's form.
    """

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: list[dict[str, Any]] | None = None


OUTSIDE = "external"
"""The environment of tasks that agents outside play."""

LIVE = "live"
"""The environment of a run without tasks: agents take sessions when they have a use for them."""

GIVEN = "given"
"""The environment of tasks whose answers are given."""

ENVIRONMENT = rf"^(?:{OUTSIDE}|.+\.py:[A-Za-z_]\w*)$"


GraderName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_-]{0,39}$")]
"""Of a grader that an agent outside may choose."""


class Task(StrictModel):
    """One prompt and how its answers are graded.

    Attributes:
        task_id: unique among all tasks of the run.
        messages: the prompt.
        split: `train` tasks are learned from; `heldout` tasks are only measured.
        grader: how an answer is graded; an environment may do without.
        answer: a right answer, for a source whose answers are `given`.
        kind: what sort of task it is, by which the page sums up rewards; the grader's kind if
            it is left out.
        difficulty: how hard it is, a number or a name, for the page as well.
        data: whatever an environment needs to know of the task.
    """

    task_id: str = Field(min_length=1)
    messages: list[Message] = Field(min_length=1)
    split: Literal["train", "heldout"]
    grader: Grader | None = None
    answer: str | None = Field(default=None, min_length=1)
    kind: str | None = Field(default=None, min_length=1, max_length=80)
    difficulty: str | int | float | None = None
    data: dict[str, Any] = Field(default={})
    _environment: str | None = PrivateAttr(default=None)  # never from a row: it names code
    _source: str = PrivateAttr(default="")

    @property
    def environment(self) -> str | None:
        """Which rollout function makes its episodes; None: it has one answer."""
        return self._environment

    @property
    def given(self) -> bool:
        """Whether its answer is learned from as it is."""
        return self._environment == GIVEN

    @property
    def labels(self) -> dict[str, str]:
        """Its source, kind and difficulty, as far as they are known."""
        other = GIVEN if self.given else "environment"
        kind = self.kind or (self.grader.kind if self.grader else other)
        known = {"source": self._source, "kind": kind, "difficulty": self.difficulty}
        return {name: str(value) for name, value in known.items() if value not in (None, "")}

    def placed(self, *, source: str, environment: str | None) -> Self:
        """The same task from this source, played in this environment."""
        task = self.model_copy()
        task._source, task._environment = source, environment
        return task

    @property
    def question(self) -> str:
        """The messages as a judge reads them."""
        if not self.messages[1:]:
            return self.messages[0].content
        return "\n\n".join(f"{one.role}: {one.content}" for one in self.messages)

    @property
    def chat(self) -> list[dict[str, Any]]:
        """The messages as they stand in the file and are sent."""
        return [message.model_dump(exclude_unset=True) for message in self.messages]


class TaskSource(StrictModel):
    """A file or data set of tasks.

    Attributes:
        file: JSON lines, or Parquet if its name ends so; a relative path counts from the run
            file. Either this or `dataset`.
        dataset: a data set that Hugging Face `datasets` loads, by name or by the path of a
            folder; a relative path begins with `./` or `../`.
        dataset_config: which configuration of it.
        dataset_split: which split of it.
        split: of all its tasks, where the rows do not say, or have null.
        evaluation_set: the held-out set of its held-out tasks, by which `evaluation.sets` and
            every result name it; `heldout` if it is left out.
        weight: its share of the training prompts, beside those of the other sources; 0 only for
            given answers that `algorithm.cross_entropy.warmup_steps` uses up.
        given: its tasks have an `answer`, which is learned from as it is
            (`algorithm.cross_entropy`); nothing is sampled for them.
        columns: from which column a field comes: `task_id`, `split`, `messages`, `grader`,
            `answer`, `kind`, `difficulty`, `prompt` (a text, as the only message) or `data.NAME`.
            Columns that are not named are left alone. Without any, the rows have a task's own
            fields.
        grader: of all its tasks, where the rows have none, or null.
        environment: of its tasks, in place of the run's (`RunConfig.environment`).
        stream: read and check rows only when their turn comes; for more than fits into memory
            or can be waited for. A task's id is then the source's name and the row's number.
    """

    file: str | None = None
    dataset: str | None = None
    dataset_config: str | None = None
    dataset_split: str = "train"
    split: Literal["train", "heldout"] | None = None
    evaluation_set: str | None = Field(default=None, pattern=r"^[a-z0-9][a-z0-9_-]{0,39}$")
    weight: float = Field(default=1.0, ge=0)
    given: bool = False
    columns: dict[str, str] = Field(default={})
    grader: Grader | None = None
    environment: str | None = Field(default=None, pattern=ENVIRONMENT)
    stream: bool = False

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.stream and self.split is None:
            raise ValueError("stream needs a split: which it is cannot be read from the rows")
        if self.weight == 0 and not self.given:
            raise ValueError("weight must be above 0: tasks of weight 0 would never be taken")
        if self.given and self.environment is not None:
            raise ValueError("given answers are not played in an environment: leave one out")
        if (self.file is None) == (self.dataset is None):
            raise ValueError("name either a file or a dataset")
        for field in self.columns:
            if field not in _MAPPED and not field.startswith("data."):
                raise ValueError(f"columns.{field}: map one of {', '.join(_MAPPED)}, data.NAME")
        return self

    @property
    def name(self) -> str:
        """Its name in errors, and in ids of tasks that have none of their own."""
        if self.file is not None:
            return self.file
        parts = [part for part in (self.dataset_config, self.dataset_split) if part]
        return f"{self.dataset} ({', '.join(parts)})"

    @property
    def names_its_tasks(self) -> bool:
        """Whether the ids of its tasks begin with its name, as the rows have none."""
        return self.stream or bool(self.columns and "task_id" not in self.columns)

    @property
    def label(self) -> str:
        """Its name in records: of a file, without its folder."""
        return self.name if self.file is None else self.file.rpartition("/")[2]

    def task(self, row: Any, number: int, where: str, *, quote: bool) -> Task:
        """Its row `number` as a task; errors as in `task_of`."""
        fields = self._mapped(row, number, where) if self.columns else row
        if isinstance(fields, dict):
            task_id = f"{self.name}:{number + 1}" if self.stream else None
            defaults = {"task_id": task_id, "split": self.split, "grader": self.grader}
            # A table has a null where a row of JSON lines leaves the key out.
            missing = [name for name in defaults if fields.get(name) is None]
            fields = fields | {name: defaults[name] for name in missing if defaults[name]}
        return task_of(fields, where, quote=quote)

    def _mapped(self, row: dict[str, Any], number: int, where: str) -> dict[str, Any]:
        fields: dict[str, Any] = {"task_id": f"{self.name}:{number + 1}"}
        data: dict[str, Any] = {}
        for field, column in self.columns.items():
            if not isinstance(row, dict) or column not in row:
                fix = f"There is no such column, which `columns.{field}` names."
                raise InvalidInput(where, column, fix)
            value = row[column]
            if field.startswith("data."):
                data[field.removeprefix("data.")] = value
            elif field == "prompt":
                fields["messages"] = [{"role": "user", "content": value}]
            elif field != "task_id":
                fields[field] = value
            elif value is not None:
                fields[field] = str(value)
        return fields | ({"data": data} if data else {})


def task_of(row: Any, source: str, *, quote: bool) -> Task:
    """A row as a task; `source` is what an error calls it.

    Without `quote` an error never shows what the row holds: a client that may start a run may name
    any file as its task file.

    Raises:
        InvalidInput: naming the field or key, and the fix.
    """
    try:
        task = Task.model_validate(row)
    except ValidationError as error:
        raise _problem(error, source, quote=quote) from None
    told = with_question(task.grader, task.question)
    return task if told is None else task.model_copy(update={"grader": told})


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
        if quote:
            fix += nearest(value, re.findall("'([^']+)'", problem["ctx"]["expected_tags"]))
    field = f"{source}: {'.'.join(place)}" if place else source
    shown = quote or kind in ("missing", "union_tag_not_found")
    return InvalidInput(field, value if shown else NOT_SHOWN, f"{fix}.")


class CurriculumConfig(StrictModel):
    """Prefer tasks that the policy solves sometimes.

    A task whose pass rate lies in the band, or is not known yet, is taken whenever the order
    comes to it; any other one with the chance `floor`, so that it is looked at again, or else
    the next of its source is taken.

    Attributes:
        low: lower end of the band of pass rates, inclusive.
        high: upper end, inclusive.
        floor: chance of a task outside of the band.
    """

    low: float = Field(default=0.1, ge=0, le=1)
    high: float = Field(default=0.9, ge=0, le=1)
    floor: float = Field(default=0.1, gt=0, le=1)

    @model_validator(mode="after")
    def _band(self) -> Self:
        if self.low > self.high:
            raise ValueError("low must be at most high")
        return self
