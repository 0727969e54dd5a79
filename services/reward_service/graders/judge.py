"""Grades by a judge: a model that scores the answer by a rubric."""

from services.observability.log import Log
from services.observability.metrics import RewardMetrics
from services.protocol.reward.grader import JudgeGrader
from services.protocol.reward.reward_service import Score, Verdict
from services.reward_service.graders.code import without_thinking
from services.reward_service.grading.judges import JudgeFailed, JudgeRequest
from services.reward_service.grading.tools import Tools

_log = Log("reward_service")


async def grade_judge(completion: str, grader: JudgeGrader, tools: Tools) -> Score:
    """Ask the judge about the answer, thinking left out, unless it has scored the same before.

    The reward is the place of the score on the scale, 0 to 1. A judge without a verdict leaves the
    answer without a reward, counted by cause. An answer that is empty or longer than the judge is
    shown has the reward 0: that it is so is the answer's own doing.
    """
    judge = tools.judges.known(grader.name)
    if judge is None:
        return Score.ungraded(f"no judge is named {grader.name!r}", cause="judge_unknown")
    answer = without_thinking(completion).strip()
    if not answer:
        return Score.failed(Verdict.NO_CODE, "there is no answer")
    if len(answer) > judge.longest_answer:
        reason = f"it has more than {judge.longest_answer} characters"
        return Score.failed(Verdict.OUTPUT_LIMIT, reason)
    request = JudgeRequest.asked(judge, grader, answer)
    kept = False

    async def asked() -> Score:
        nonlocal kept
        try:
            score, kept = await tools.judges.score(grader, request, await tools.http())
        except JudgeFailed as failure:
            _log.warning("judge_failed", judge=grader.name, cause=failure.cause, why=str(failure))
            return Score.ungraded(f"judge {grader.name}: {failure}", cause=failure.cause)
        reward = (score - grader.lowest) / (grader.highest - grader.lowest)
        said = f"the judge gave {score:g} of {grader.highest:g}"
        if reward > 0:
            return Score(verdict=Verdict.ACCEPTED, reward=reward, passed=1, detail=said)
        return Score.failed(Verdict.WRONG_ANSWER, said)

    grade, shared = await tools.cache.grade(f"judge {request.digest}", asked)
    outcome = "cached" if shared or kept else grade.cause or "scored"
    RewardMetrics.judged.inc(1, {"judge": grader.name, "outcome": outcome})
    return grade
