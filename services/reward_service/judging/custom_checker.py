"""Asks a user's checker about one output, in a jail that the answer never entered."""

import math
from dataclasses import replace

from services.observability.metrics import RewardMetrics
from services.protocol.reward.code_tests import Limits
from services.protocol.reward.reward_service import Verdict
from services.reward_service.jailed.answer import VALUE
from services.reward_service.jailed.codec import NotEncodable, encode
from services.reward_service.judging.budget import Budget
from services.reward_service.judging.fault import CheckerFailed, TaskFault
from services.reward_service.judging.judge import JudgedCalls, failed, judge_calls
from services.reward_service.off_loop import off_loop
from services.reward_service.sandbox.execution import Program
from services.reward_service.sandbox.sandbox import SandboxWorker

_LIMITS = Limits(cpu_s=10.0)
_SAID = {f"{VALUE}True": True, f"{VALUE}False": False}
_AT_LIMIT = (Verdict.TIME_LIMIT, Verdict.MEMORY_LIMIT, Verdict.OUTPUT_LIMIT)


async def ask_checker(
    source: str, arguments: list[object], worker: SandboxWorker, budget: Budget, *, size: int
) -> bool:
    """Whether `check` of a source accepts an output, the last of the arguments, of `size` bytes.

    Raises:
        CheckerFailed: it raised, reached a limit or returned no bool, on this output.
        TaskFault: it fails before it has seen any output.
        SlotFailed: no process could be had.
    """
    try:
        text = await off_loop(size, encode, arguments)
    except NotEncodable:
        return False
    judged = await _run(source, [text], worker, budget, wall_s=budget.left_s)
    if judged.failure is None and judged.lines[0] in _SAID:
        return _SAID[judged.lines[0]]
    alone = await _run(source, [], worker, budget)
    if alone.failure is not None:
        raise TaskFault(f"the checker fails by itself: {alone.failure.detail}")
    verdict, reason, said = Verdict.WRONG_ANSWER, "raised", "it returned no bool"
    if judged.failure is None:
        reason = "no_bool"
    else:
        said = judged.failure.detail
        if judged.failure.verdict in _AT_LIMIT:
            verdict, reason = judged.failure.verdict, str(judged.failure.verdict)
    RewardMetrics.checker_failures.inc(1, {"grader": "custom", "reason": reason})
    judgement = failed(verdict, f"the checker failed on it: {said}")
    raise CheckerFailed(judgement, at_limit=verdict in _AT_LIMIT)


async def _run(
    source: str,
    calls: list[str],
    worker: SandboxWorker,
    budget: Budget,
    *,
    wall_s: float = math.inf,
) -> JudgedCalls:
    """Make calls of `check`; none only runs the statements around it."""
    execution = Program(source=source).calls("check", calls, _LIMITS)
    outcome = await worker.run_trusted(replace(execution, wall_s=min(execution.wall_s, wall_s)))
    budget.charge_checker(outcome)
    return await off_loop(len(outcome.report), judge_calls, len(calls), outcome, _LIMITS)
