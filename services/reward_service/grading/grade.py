"""The outcome of grading one answer, whoever asked for it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from services.protocol.reward.grader import WeightedGrader
from services.protocol.reward.reward_service import CheckedTest, CompileRecord, Score, Verdict


@dataclass(frozen=True, kw_only=True)
class Grade:
    """A verdict that can be shared by identical answers; see `Score` for the fields."""

    verdict: Verdict
    reward: float | None
    passed: int = 0
    total: int = 1
    cpu_s: float = 0.0
    detail: str = ""
    first_failure: int | None = None
    tests: tuple[CheckedTest, ...] = ()
    compile: CompileRecord | None = None
    tier: str = ""
    parts: "tuple[Grade, ...]" = ()
    cached: bool = False

    def score(self, job_id: str, *, seconds: float) -> Score:
        """The score of one job; whatever was computed, `infra_error` has no reward."""
        return Score(
            job_id=job_id,
            verdict=self.verdict,
            reward=None if self.verdict is Verdict.INFRA_ERROR else self.reward,
            passed=self.passed,
            total=self.total,
            seconds=seconds,
            cpu_s=self.cpu_s,
            detail=self.detail,
            cached=self.cached,
            run=len(self.tests),
            first_failure=self.first_failure,
            tests=self.tests,
            compile=self.compile,
            tier=self.tier,
            parts=tuple(part.score(job_id, seconds=seconds) for part in self.parts),
        )

    def of(self, total: int) -> "Grade":
        """The same for so many declared tests."""
        return replace(self, total=total)


def infra_failure(reason: str) -> Grade:
    """Grading itself failed: there is no verdict over the answer, and no reward."""
    return Grade(verdict=Verdict.INFRA_ERROR, reward=None, detail=reason[:200])


def failure(verdict: Verdict, reason: str) -> Grade:
    """The answer earned nothing."""
    return Grade(verdict=verdict, reward=0.0, detail=reason[:200])


def right_or_wrong(right: bool, reason: str) -> Grade:
    """One question, answered right or not."""
    if right:
        return Grade(verdict=Verdict.ACCEPTED, reward=1.0, passed=1)
    return failure(Verdict.WRONG_ANSWER, reason)


def weighted(grader: WeightedGrader, parts: Sequence[Grade]) -> Grade:
    """The weighted sum of the parts; one that cannot be graded leaves the whole ungraded."""
    for part in parts:
        if part.verdict is Verdict.INFRA_ERROR or part.reward is None:
            return infra_failure(part.detail).of(grader.total)
    failed = next((part for part in parts if part.verdict is not Verdict.ACCEPTED), None)
    return Grade(
        verdict=Verdict.ACCEPTED if failed is None else failed.verdict,
        reward=sum(
            declared.weight * (part.reward or 0.0)
            for declared, part in zip(grader.parts, parts, strict=True)
        ),
        passed=sum(part.passed for part in parts),
        total=sum(part.total for part in parts),
        cpu_s=sum(part.cpu_s for part in parts),
        detail="" if failed is None else failed.detail,
        tier=next((part.tier for part in parts if part.tier), ""),
        parts=tuple(parts),
    )
