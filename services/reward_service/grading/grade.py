"""Scores as graders return them: without a job, so that identical answers share them."""

from collections.abc import Sequence
from dataclasses import replace

from services.protocol.reward.grader import WeightedGrader
from services.protocol.reward.reward_service import Score, Verdict


def infra_failure(reason: str) -> Score:
    """Grading itself failed: there is no verdict over the answer, and no reward."""
    return Score(verdict=Verdict.INFRA_ERROR, reward=None, detail=reason[:200])


def failure(verdict: Verdict, reason: str) -> Score:
    """The answer earned nothing."""
    return Score(verdict=verdict, reward=0.0, detail=reason[:200])


def right_or_wrong(right: bool, reason: str) -> Score:
    """One question, answered right or not."""
    if right:
        return Score(verdict=Verdict.ACCEPTED, reward=1.0, passed=1)
    return failure(Verdict.WRONG_ANSWER, reason)


def weighted(grader: WeightedGrader, parts: Sequence[Score]) -> Score:
    """The weighted sum of the parts; one that cannot be graded leaves the whole ungraded."""
    for part in parts:
        if part.verdict is Verdict.INFRA_ERROR or part.reward is None:
            return replace(infra_failure(part.detail), total=grader.total)
    failed = next((part for part in parts if part.verdict is not Verdict.ACCEPTED), None)
    return Score(
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


def of_job(score: Score, job_id: str, *, seconds: float) -> Score:
    """The score of one job, its parts included."""
    parts = tuple(of_job(part, job_id, seconds=seconds) for part in score.parts)
    return replace(score, job_id=job_id, seconds=seconds, parts=parts)
