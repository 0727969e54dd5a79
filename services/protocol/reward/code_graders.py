"""Graders of code: how tests are written, and what an answer has to do to pass them."""

from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from services.protocol.reward.assert_tests import called_function, parsed, read_asserts
from services.protocol.reward.code_tests import (
    CallChecker,
    Checker,
    CodeTest,
    FunctionTest,
    Limits,
    Policy,
    StdioTest,
    TrailingSpaceChecker,
)
from services.protocol.strict import StrictModel

_PLACE = "{completion}"


def _with_a_place(template: str) -> str:
    if _PLACE not in template:
        raise ValueError(f"template must contain {_PLACE}, where the answer goes")
    return template


Template = Annotated[str, AfterValidator(_with_a_place)]


class PythonFunctionGrader(StrictModel):
    """A Python function graded by calls whose expected results stay in the service.

    Attributes:
        entry_point: name of the function.
        template: source with `{completion}` where the answer's code goes; without a
            template the last fenced code block of the answer, or else the whole answer.
        tests: all must pass.
        limits: of each test.
    """

    kind: Literal["python_function"]
    entry_point: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    template: Template | None = None
    tests: list[FunctionTest] = Field(min_length=1)
    limits: Limits = Limits()

    def as_code(self) -> "CodeGrader":
        """The long form."""
        return CodeGrader(
            kind="code",
            tests=[CodeTest(args=test.args, expected=test.expected) for test in self.tests],
            entry_point=self.entry_point,
            template=self.template,
            limits=self.limits,
        )

    @property
    def total(self) -> int:
        """Tests declared."""
        return len(self.tests)


class PythonStdioGrader(StrictModel):
    """A Python program graded by what it prints for each input.

    Attributes:
        tests: all must pass.
        limits: of each run.
    """

    kind: Literal["python_stdio"]
    tests: list[StdioTest] = Field(min_length=1)
    limits: Limits = Limits()

    def as_code(self) -> "CodeGrader":
        """The long form."""
        tests = [CodeTest(stdin=test.stdin, expected=test.expected) for test in self.tests]
        return CodeGrader(kind="code", tests=tests, limits=self.limits)

    @property
    def total(self) -> int:
        """Tests declared."""
        return len(self.tests)


class PythonAssertsGrader(StrictModel):
    """A Python function graded by asserts, as HumanEval, MBPP and LeetCode-like sets have them.

    Attributes:
        tests: a text with `def check(candidate)`, or of asserts; or a list of texts.
        entry_point: the function, or `Class.method` (`Class().method` is the same); without
            it the one function that the tests call and do not define.
        setup: Python that the asserts need; the answer never sees it.
        prelude: as for `code`.
        template: as for `python_function`.
        policy: how passed tests become a reward. Asserts that stand alone are a test each.
        limits: of each test.
    """

    kind: Literal["python_asserts"]
    tests: str | Annotated[list[str], Field(min_length=1)]
    entry_point: str = Field(default="", pattern=r"^([A-Za-z_]\w*((\(\))?\.[A-Za-z_]\w*)?)?$")
    setup: str = ""
    prelude: str = ""
    template: Template | None = None
    policy: Literal["all", "fraction"] = "all"
    limits: Limits = Limits()

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        read_asserts(self.tests)
        parsed(self.setup, "setup")
        if not self.entry_point:
            called_function(self.tests, self.setup)
        return self

    def as_code(self) -> "CodeGrader":
        """The long form."""
        found = read_asserts(self.tests)
        entry_point = self.entry_point or called_function(self.tests, self.setup)
        return CodeGrader(
            kind="code",
            tests=[CodeTest(asserts=one, expected=None) for one in found.asserts],
            entry_point=entry_point.replace("()", ""),
            setup=f"{found.setup}\n{self.setup}",
            prelude=self.prelude,
            template=self.template,
            policy=self.policy,
            limits=self.limits,
        )

    @property
    def total(self) -> int:
        """Tests declared."""
        return len(read_asserts(self.tests).asserts)


class CodeGrader(StrictModel):
    """Code in any language of the service, of which those above are short forms.

    Either `tests` or `test_set` says what is tested.

    Attributes:
        language: a name in the service's language table.
        tests: runs, or calls and asserts, which need an `entry_point`; asserts are Python.
        test_set: SHA-256, in hex, of tests that the service was given beforehand.
        entry_point: the function, or `Class.method`, that is called.
        template: as for `python_function`.
        prelude: source before the answer's code; asserts know what it defines, too.
        setup: Python that asserts need; the answer never sees it.
        checker: what makes an output or a result right.
        policy: how passed tests become a reward.
        limits: of each run.
        cpu_budget_s: processor seconds for all tests of an answer together; those that are
            left when it is used up count as failed.
        reference: an answer that is known to be right. Where a checker of yours fails on
            another answer it is asked about this one: if it fails again, the task is at fault.
    """

    kind: Literal["code"]
    language: str = "python"
    tests: list[CodeTest] | None = Field(default=None, min_length=1)
    test_set: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    entry_point: str | None = Field(
        default=None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z_][A-Za-z0-9_]*)?$"
    )
    template: Template | None = None
    prelude: str = ""
    setup: str = ""
    checker: Checker | None = None
    policy: Policy = "all"
    limits: Limits = Limits()
    cpu_budget_s: float | None = Field(default=None, gt=0)
    reference: str | None = Field(default=None, min_length=1)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if (self.tests is None) == (self.test_set is None):
            raise ValueError("give either tests or test_set")
        if self.tests is not None:
            check_tests(self.tests, self.entry_point, self.language)
        return self

    def as_code(self) -> "CodeGrader":
        """Itself: this is the long form."""
        return self

    @property
    def total(self) -> int:
        """Tests declared here; 0 where a test set has them."""
        return len(self.tests or [])

    @property
    def output_checker(self) -> Checker:
        """The checker: by default of all but trailing space, and for calls of type and value."""
        if self.checker is not None:
            return self.checker
        return CallChecker() if self.entry_point else TrailingSpaceChecker()


def check_tests(tests: list[CodeTest], entry_point: str | None, language: str) -> None:
    """Refuse tests that are not all calls, with an entry point, or all runs, without one.

    Raises:
        ValueError: naming the test.
    """
    for number, test in enumerate(tests):
        if entry_point is not None and test.stdin is not None:
            raise ValueError(f"tests[{number}] has no args, but there is an entry_point")
        if entry_point is None and test.stdin is None:
            raise ValueError(f"tests[{number}] has no stdin, so entry_point is needed")
        if test.asserts is not None:
            if language != "python":
                raise ValueError(f"tests[{number}] has asserts, but language is {language}")
            parsed(test.asserts, f"tests[{number}].asserts")
