"""The outcome of grading one answer's code, whoever asked for it."""

from dataclasses import dataclass

from services.protocol.reward_service import Score, Verdict


@dataclass(frozen=True, kw_only=True)
class Grade:
    """A verdict that can be shared by identical answers; see `Score` for the fields."""

    verdict: Verdict
    passed: int
    cpu_s: float
    detail: str

    def score(self, job_id: str, total: int, *, seconds: float, cached: bool) -> Score:
        """The score of one job: 1.0 if accepted, None if grading failed, else 0.0."""
        reward = 1.0 if self.verdict is Verdict.ACCEPTED else 0.0
        return Score(
            job_id=job_id,
            verdict=self.verdict,
            reward=None if self.verdict is Verdict.INFRA_ERROR else reward,
            passed=self.passed,
            total=total,
            seconds=seconds,
            cpu_s=self.cpu_s,
            detail=self.detail,
            cached=cached,
        )


def infra_failure(reason: str) -> Grade:
    """Grading itself failed: there is no verdict over the answer, and no reward."""
    return Grade(verdict=Verdict.INFRA_ERROR, passed=0, cpu_s=0.0, detail=reason)
