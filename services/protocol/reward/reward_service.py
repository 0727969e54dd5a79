"""Requests and answers of the reward service."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from services.protocol.reward.grader import AnyGrader
from services.protocol.text_file import encodable


class Verdict(StrEnum):
    """The outcome of grading one answer."""

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


@dataclass(frozen=True, kw_only=True)
class ScoreJob:
    """Grade one answer.

    Attributes:
        job_id: the caller's name for it, returned in the score.
        completion: the model's answer, decoded.
        grader: how to grade it.
        trace: W3C `traceparent` of the caller's span, empty without one.
    """

    job_id: str
    completion: str
    grader: AnyGrader
    trace: str = ""


@dataclass(frozen=True, kw_only=True)
class CheckedTest:
    """One test that was run.

    Calls that one process made share its figures.

    Attributes:
        test: its place among the declared tests, from 0.
        verdict: how it ended.
        cpu_ms: processor milliseconds of its process, user and system.
        wall_ms: milliseconds from start to end of its process.
        peak_kb: most memory that its process held, KiB; an upper bound, for it starts as a
            fork of another.
        output: the beginning of what it printed or returned, escaped.
        detail: why it failed, without expected values.
    """

    test: int
    verdict: Verdict
    cpu_ms: float
    wall_ms: float
    peak_kb: int
    output: str
    detail: str


@dataclass(frozen=True, kw_only=True)
class CompileRecord:
    """The outcome of compiling an answer.

    Attributes:
        ok: there is a program.
        cpu_ms: processor milliseconds of the compiler.
        wall_ms: milliseconds from its start to its end.
        cached: an identical answer had been compiled before.
        message: the first lines of the compiler's complaint.
    """

    ok: bool
    cpu_ms: float
    wall_ms: float
    cached: bool
    message: str


@dataclass(frozen=True, kw_only=True)
class SandboxUse:
    """One stay of an answer in a sandbox.

    Attributes:
        sandbox: host and process of the service, and the number of the sandbox there.
        began_at: seconds since 1970, by that host's clock.
        seconds: how long the answer had it.
    """

    sandbox: str
    began_at: float
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Score:
    """A grader's whole answer.

    Attributes:
        verdict: how it ended; for several tests the first failure.
        reward: what the policy or the grader gives, None when grading itself failed
            (`infra_error`): an infrastructure failure is never a reward.
        job_id: copied from the job; empty while identical answers share the score.
        passed: tests passed.
        total: tests declared.
        seconds: wall time of grading, waiting included; 0.0 when cached.
        cpu_s: processor seconds of the answer's processes, compiling left out.
        detail: one short line for people: the first failure, without expected values.
        cached: taken from the verdict cache.
        run: tests run; the others were not needed for the reward.
        first_failure: the failed test that gave the verdict, from 0.
        tests: those that were run, in the order of running.
        compile: of a compiled language.
        tier: how the answer was held, `A` or `B`; empty for graders that run no code.
        parts: the scores of a weighted composition's graders.
        uses: the sandboxes that it took, a bounded number; none when cached.
        rewards: by name, where the grader gives several; `reward` is their sum, or what the
            weights of a composition or of a run make of them.
        refused: the grader failed on this answer, which the answer brought about: `reward` is
            what the task gives for that, also under each name.
        returns: of an episode with rewards before its end, for each turn of the trajectory, or each
            token with a reward of its own: one past its last response token, and the sum of the
            rewards from it on, undiscounted.
        cause: why there is no reward, a short name for counting; empty where there is one.
    """

    verdict: Verdict
    reward: float | None
    job_id: str = ""
    passed: int = 0
    total: int = 1
    seconds: float = 0.0
    cpu_s: float = 0.0
    detail: str = ""
    cached: bool = False
    run: int = 0
    first_failure: int | None = None
    tests: tuple[CheckedTest, ...] = ()
    compile: CompileRecord | None = None
    tier: str = ""
    parts: "tuple[Score, ...]" = ()
    uses: tuple[SandboxUse, ...] = ()
    rewards: dict[str, float] = field(default_factory=dict)
    refused: bool = False
    returns: tuple[tuple[int, float], ...] = ()
    cause: str = ""

    def __post_init__(self) -> None:
        """Keep half of a surrogate pair, which a model or a user's grader wrote, out of `detail`:
        neither the ledger nor JSON can hold it."""
        object.__setattr__(self, "detail", encodable(self.detail))

    @classmethod
    def ungraded(
        cls, reason: str, *, job_id: str = "", total: int = 1, cause: str = "infra_error"
    ) -> "Score":
        """Grading itself failed: there is no verdict over the answer, and no reward."""
        return cls(
            verdict=Verdict.INFRA_ERROR,
            reward=None,
            job_id=job_id,
            total=total,
            detail=reason[:200],
            cause=cause,
        )

    @classmethod
    def failed(cls, verdict: Verdict, reason: str) -> "Score":
        """The answer earned nothing."""
        return cls(verdict=verdict, reward=0.0, detail=reason[:200])

    @classmethod
    def right_or_wrong(cls, right: bool, reason: str) -> "Score":
        """The answer to one question; `reason` says why it is wrong."""
        if right:
            return cls(verdict=Verdict.ACCEPTED, reward=1.0, passed=1)
        return cls.failed(Verdict.WRONG_ANSWER, reason)


class RewardService(Protocol):
    """The reward service's interface."""

    async def score(self, jobs: list[ScoreJob]) -> list[Score]:
        """Grade jobs, answers in the order of the jobs; never raises for what a job does."""

    async def sandboxes(self) -> int:
        """Sandboxes that run at the same time, of all replicas."""
