"""What the reward service receives and answers."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal, Protocol

from pydantic import Field, model_validator

from services.protocol.strict import StrictModel


class Verdict(StrEnum):
    """How grading one answer ended."""

    ACCEPTED = "accepted"
    WRONG_ANSWER = "wrong_answer"
    RUNTIME_ERROR = "runtime_error"
    TIME_LIMIT = "time_limit"
    MEMORY_LIMIT = "memory_limit"
    OUTPUT_LIMIT = "output_limit"
    COMPILE_ERROR = "compile_error"
    NO_CODE = "no_code"
    CRASHED_SANDBOX = "crashed_sandbox"
    INFRA_ERROR = "infra_error"


class Limits(StrictModel):
    """What one test may use; the calls of one `python_function` answer share it.

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
    """

    args: list[Any]
    expected: Any


class StdioTest(StrictModel):
    """Run the program with `stdin` and compare what it prints, trailing space aside."""

    stdin: str
    expected: str


class PythonFunctionGrader(StrictModel):
    """A Python function graded by calls whose expected results stay in the service.

    Attributes:
        entry_point: name of the function.
        template: source with `{completion}` where the answer's code goes; without a
            template the last fenced code block of the answer, or else the whole answer.
        tests: all must pass.
    """

    kind: Literal["python_function"]
    entry_point: str = Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")
    template: str | None = None
    tests: list[FunctionTest] = Field(min_length=1)
    limits: Limits = Limits()

    @model_validator(mode="after")
    def _template_has_a_place(self) -> "PythonFunctionGrader":
        if self.template is not None and "{completion}" not in self.template:
            raise ValueError("template must contain {completion}, where the answer goes")
        return self


class PythonStdioGrader(StrictModel):
    """A Python program graded by what it prints for each input."""

    kind: Literal["python_stdio"]
    tests: list[StdioTest] = Field(min_length=1)
    limits: Limits = Limits()


Grader = Annotated[PythonFunctionGrader | PythonStdioGrader, Field(discriminator="kind")]


@dataclass(frozen=True, kw_only=True)
class ScoreJob:
    """Grade one answer.

    Attributes:
        job_id: the caller's name for it, returned in the score.
        completion: the model's answer, decoded.
        grader: how to grade it.
    """

    job_id: str
    completion: str
    grader: PythonFunctionGrader | PythonStdioGrader


@dataclass(frozen=True, kw_only=True)
class Score:
    """A grader's whole answer.

    Attributes:
        job_id: copied from the job.
        verdict: how it ended; for several tests the first failure.
        reward: 1.0 if accepted, 0.0 if not, None when grading itself failed
            (`infra_error`): an infrastructure failure is never a reward.
        passed: tests passed.
        total: tests declared.
        seconds: wall time of grading, 0.0 when cached.
        cpu_s: processor seconds of the answer's process.
        detail: one short line for people: the first failure, without expected values.
        cached: taken from the verdict cache.
    """

    job_id: str
    verdict: Verdict
    reward: float | None
    passed: int
    total: int
    seconds: float
    cpu_s: float
    detail: str
    cached: bool


class RewardService(Protocol):
    """The reward service's interface."""

    async def score(self, jobs: list[ScoreJob]) -> list[Score]:
        """Grade jobs, answers in the order of the jobs; never raises for what a job does."""
