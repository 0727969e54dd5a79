"""Graders of answers, one model for each `kind`."""

import re
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from services.protocol.reward.code_graders import (
    CodeGrader,
    PythonAssertsGrader,
    PythonFunctionGrader,
    PythonStdioGrader,
)
from services.protocol.reward.named_rewards import MAX_NAMES, RewardName
from services.protocol.strict import StrictModel, wrong_field


def _regular_expression(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"pattern is not a regular expression: {error}") from None
    return pattern


Pattern = Annotated[str, AfterValidator(_regular_expression)]


def _one_at_least(expected: str | list[str]) -> str | list[str]:
    if not expected and isinstance(expected, list):
        raise ValueError("expected is empty, so no answer could be right: give one at least")
    return expected


Expected = Annotated[str | list[str], AfterValidator(_one_at_least)]


class _TextGrader(StrictModel):
    """One question about the text of an answer, thinking left out."""

    @property
    def total(self) -> int:
        """A text is one test."""
        return 1


class ExactGrader(_TextGrader):
    """The answer is one of the expected texts, white space at its ends aside.

    Attributes:
        expected: one text or several, of which any will do.
        pattern: regular expression whose first group, at its last match, is the answer;
            without it the answer is the whole text.
        ignore_case: compare without regard to case.
    """

    kind: Literal["exact"]
    expected: Expected
    pattern: Pattern | None = None
    ignore_case: bool = False

    @model_validator(mode="after")
    def _pattern_has_a_group(self) -> Self:
        if self.pattern is not None and re.compile(self.pattern).groups < 1:
            raise ValueError("pattern needs a group, which is the answer")
        return self


class RegexGrader(_TextGrader):
    """The pattern matches somewhere in the answer, or the whole of it.

    Attributes:
        pattern: Python regular expression; `.` matches line breaks too.
        whole: it must match all of the answer, white space at its ends aside.
        ignore_case: match without regard to case.
    """

    kind: Literal["regex"]
    pattern: Pattern
    whole: bool = False
    ignore_case: bool = False

    @model_validator(mode="after")
    def _pattern_may_stand_in_another(self) -> Self:
        _regular_expression(f"(?s:{self.pattern})")  # as the service matches it
        return self


class FormatGrader(_TextGrader):
    r"""The answer has a form: all that is asked for must hold. Thinking counts here.

    Attributes:
        tags: names of tags, such as `think` and `answer`: each once, closed, in this order.
        boxed: there is a `\boxed{...}` that is not empty.
        code: there is a fenced code block that is closed and not empty.
        max_characters: longest answer.
    """

    kind: Literal["format"]
    tags: list[str] = Field(default_factory=list)
    boxed: bool = False
    code: bool = False
    max_characters: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _asks_for_something(self) -> Self:
        if not (self.tags or self.boxed or self.code or self.max_characters):
            raise ValueError(
                "every answer would do: ask for tags, boxed: true, code: true or max_characters"
            )
        return self


class MathsGrader(_TextGrader):
    r"""A mathematical answer: equal as text, else as a number, else by `math-verify`.

    Attributes:
        expected: one answer or several, of which any will do; LaTeX or plain.
        strict: only the last `\boxed{...}` that is not empty counts, and an answer is wrong that
            is not simplified (`40+2`, `\frac{2}{4}`, `x+x`) or has not the brackets of the
            expected one (`1,2` for `(1,2)`).
        timeout_s: seconds for `math-verify`; longer is `time_limit`.
    """

    kind: Literal["maths"]
    expected: Expected
    strict: bool = False
    timeout_s: float = Field(default=2.0, gt=0, le=60)


class PythonGrader(_TextGrader):
    """A Python function that was registered with the service under a name.

    Attributes:
        name: in the service's configuration, or given by `@grader`.
        arguments: keyword arguments for it.
        timeout_s: seconds it may take.
        on_failure: reward of an answer on which it raises, takes longer or returns no finite
            number; null leaves the answer out (`infra_error`).
        reference: an answer that is known to be right. Where it fails on another answer it is
            asked about this one: if it fails again, the task is at fault (`infra_error`).
    """

    kind: Literal["python"]
    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    timeout_s: float = Field(default=10.0, gt=0, le=600)
    on_failure: float | None = Field(default=0.0, allow_inf_nan=False)
    reference: str | None = None


class HttpGrader(_TextGrader):
    """An HTTP endpoint that was registered with the service under a name.

    Attributes:
        name: in the service's configuration.
        arguments: sent along.
        timeout_s: seconds for each call: two about the answer, and one about `reference`.
        on_failure: reward of an answer on which the endpoint fails twice while it answers about
            `reference` in between; null leaves the answer out (`infra_error`).
        reference: an answer about which the endpoint has a reward; without it the empty
            answer. An endpoint that fails on this one too is down (`infra_error`).
    """

    kind: Literal["http"]
    name: str
    arguments: dict[str, Any] = Field(default_factory=dict)
    timeout_s: float = Field(default=30.0, gt=0, le=600)
    on_failure: float | None = Field(default=0.0, allow_inf_nan=False)
    reference: str | None = None


class JudgeGrader(_TextGrader):
    """A model that was registered with the service under a name scores the answer by a rubric.

    The reward is the place of its score on the scale, 0 to 1. If it gives none, the answer is left
    out: that is never a reward.

    Attributes:
        name: in the service's configuration.
        rubric: what a good answer is, and what each score means.
        question: what the answer is to; of a task the messages, unless it is given.
        lowest: worst score.
        highest: best score.
    """

    kind: Literal["judge"]
    name: str
    rubric: str = Field(min_length=1, max_length=1 << 16)
    question: str | None = None
    lowest: float = 0.0
    highest: float = 10.0

    @model_validator(mode="after")
    def _has_a_scale(self) -> Self:
        if self.lowest >= self.highest:
            raise wrong_field("highest", self.highest, f"Give more than lowest, {self.lowest:g}.")
        return self


class Part(StrictModel):
    """One grader of a weighted composition.

    Attributes:
        grader: any kind but another composition.
        weight: its reward is multiplied by this; below 0 it is a penalty.
        name: keeps its reward, before the weight, beside the sum: `algorithm.rewards` of a run
            file can weigh it anew. Either all parts have one or none.
    """

    grader: "SingleGrader"
    weight: float
    name: RewardName | None = None


class WeightedGrader(StrictModel):
    """The sum of several graders' rewards, each times its weight.

    Attributes:
        parts: what is added up.
    """

    kind: Literal["weighted"]
    parts: list[Part] = Field(min_length=1)

    @model_validator(mode="after")
    def _names_all_or_none(self) -> Self:
        names = [part.name for part in self.parts if part.name is not None]
        if names and len(set(names)) < len(self.parts):
            raise wrong_field("parts.name", names, "Name each part, and each differently, or none.")
        if len(names) > MAX_NAMES:
            raise wrong_field("parts.name", names, f"Name at most {MAX_NAMES} parts.")
        return self

    @property
    def total(self) -> int:
        """Tests of all parts."""
        return sum(part.grader.total for part in self.parts)


_Single = (
    PythonFunctionGrader
    | PythonStdioGrader
    | PythonAssertsGrader
    | CodeGrader
    | ExactGrader
    | RegexGrader
    | FormatGrader
    | MathsGrader
    | PythonGrader
    | HttpGrader
    | JudgeGrader
)
SingleGrader = Annotated[_Single, Field(discriminator="kind")]
AnyGrader = _Single | WeightedGrader
Grader = Annotated[AnyGrader, Field(discriminator="kind")]
"""What a task file may have as `grader`. `python` and `http` leave it open: they name what a
user has registered with the service, which alone knows it."""

Part.model_rebuild()
WeightedGrader.model_rebuild()


def with_question(grader: AnyGrader | None, question: str) -> AnyGrader | None:
    """The grader whose judges know what the answer is to, if they do not yet."""
    if isinstance(grader, JudgeGrader) and grader.question is None:
        return grader.model_copy(update={"question": question})
    if isinstance(grader, WeightedGrader):
        told = [(part, with_question(part.grader, question)) for part in grader.parts]
        parts = [part.model_copy(update={"grader": one}) for part, one in told]
        return grader.model_copy(update={"parts": parts})
    return grader
