"""Tests of code: runs and calls, limits, checkers, reward policies."""

from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from services.protocol.reward.checker_source import with_a_check
from services.protocol.strict import StrictModel

Policy = Literal["all", "fraction", "weighted", "grouped"]
"""How passed tests become a reward: 1 for all and else 0; the part of all declared tests; the
part of their weights; the weights of the groups of which every test passed, as part of all."""


class Limits(StrictModel):
    """Limits of one test; calls of one answer that share a process share them.

    Attributes:
        cpu_s: processor seconds.
        memory_mb: address space beyond the interpreter's own, MiB.
        output_kb: bytes written to one stream, KiB.
    """

    cpu_s: float = Field(default=2.0, gt=0, le=60)
    memory_mb: int = Field(default=512, ge=64, le=16384)
    output_kb: int = Field(default=256, ge=1, le=65536)


class FunctionTest(StrictModel):
    """Call the entry point with `args` and compare the result's type and value.

    `True`, `1` and `1.0` differ; floats must be equal to the last bit. A tuple counts as a
    list, because a task file has only one kind of sequence.

    Attributes:
        args: positional arguments.
        expected: what it must return.
    """

    args: list[Any]
    expected: Any


class StdioTest(StrictModel):
    """Run the program with `stdin` and compare what it prints, trailing space aside.

    Attributes:
        stdin: what the program can read.
        expected: what it must print.
    """

    stdin: str
    expected: str


class CodeTest(StrictModel):
    """One run with `stdin`, one call with `args`, or Python asserts that call the answer.

    Attributes:
        stdin: what the program can read.
        args: positional arguments of the entry point.
        asserts: Python statements that call the entry point by its name or as `candidate`,
            and raise if the answer is wrong.
        expected: what it must print or return.
        also: other outputs or results that are right as well.
        weight: its part in the policies `weighted` and `grouped`.
        group: subtask in the policy `grouped`; a test without one is a group of its own.
    """

    stdin: str | None = None
    args: list[Any] | None = None
    asserts: str | None = Field(default=None, min_length=1)
    expected: Any
    also: list[Any] = Field(default_factory=list)
    weight: float = Field(default=1.0, ge=0)
    group: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _asserts_need_no_expected(cls, data: Any) -> Any:
        return {"expected": None, **data} if isinstance(data, dict) and "asserts" in data else data

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if [self.stdin, self.args, self.asserts].count(None) != 2:
            raise ValueError("a test has one of stdin, args and asserts")
        if self.asserts is not None and (self.expected is not None or self.also):
            raise ValueError("asserts say themselves what is expected")
        if self.stdin is not None:
            for text in (self.expected, *self.also):
                if not isinstance(text, str):
                    raise ValueError("expected must be a text where there is stdin")
        return self


class ExactChecker(StrictModel):
    """Every byte; for results, type and value."""

    kind: Literal["exact"] = "exact"


class TrailingSpaceChecker(StrictModel):
    """White space at the ends of lines and empty lines at the end do not count."""

    kind: Literal["trailing_space"] = "trailing_space"


class TokensChecker(StrictModel):
    """Words in order, whatever white space is between them."""

    kind: Literal["tokens"] = "tokens"


class FloatChecker(StrictModel):
    """Words in order, numbers within a tolerance; for results, numbers at any depth.

    A number passes if it is off by at most `absolute`, or by at most `relative` times the
    expected one. Infinity passes only for the same infinity, not as a number too large to be
    held, and NaN only for NaN.

    Attributes:
        absolute: tolerance whatever the size.
        relative: tolerance as a share of the expected number. By default 1e-6; but where an
            integer is expected at most 0.5, and of another integer none.
    """

    kind: Literal["float"] = "float"
    absolute: float = Field(default=1e-9, ge=0)
    relative: float | None = Field(default=None, ge=0)


class UnorderedChecker(StrictModel):
    """Lines in any order; for results, the items of the outer list in any order."""

    kind: Literal["unordered"] = "unordered"


class CallChecker(StrictModel):
    """For results only: type and value; of a language with static types, value alone."""

    kind: Literal["typed"] = "typed"


class CustomChecker(StrictModel):
    """Python source with `check(given, expected, got)`, which returns True or False.

    `given` is the standard input or the list of arguments, `got` the output or the result.
    It runs in a jail of its own. A test on whose output it raises, hangs or returns anything but
    a bool counts as failed. If it fails before it is called, or on the grader's `reference` too,
    the task is at fault and the answer is `infra_error`.

    Attributes:
        source: the Python source.
    """

    kind: Literal["custom"] = "custom"
    source: Annotated[str, AfterValidator(with_a_check)] = Field(min_length=1)


Checker = Annotated[
    ExactChecker
    | TrailingSpaceChecker
    | TokensChecker
    | FloatChecker
    | UnorderedChecker
    | CallChecker
    | CustomChecker,
    Field(discriminator="kind"),
]
