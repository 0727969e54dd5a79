"""Grades by several graders together."""

import asyncio

from services.protocol.reward.grader import WeightedGrader
from services.protocol.reward.reward_service import Verdict
from services.reward_service.graders.registry import grade_completion, grades
from services.reward_service.grading.grade import Grade, infra_failure
from services.reward_service.grading.tools import Tools


@grades(WeightedGrader)
async def grade_weighted(completion: str, grader: WeightedGrader, tools: Tools) -> Grade:
    """The weighted sum of the parts; one that cannot be graded leaves the whole ungraded."""
    calls = (grade_completion(completion, part.grader, tools) for part in grader.parts)
    parts = tuple(await asyncio.gather(*calls))
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
        parts=parts,
    )
