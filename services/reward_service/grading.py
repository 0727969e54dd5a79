"""Grades one answer in one slot."""

import json
import os

from services.observability.log import Log
from services.observability.metrics import RewardMetrics
from services.protocol.reward_service import (
    Limits,
    PythonFunctionGrader,
    PythonStdioGrader,
    Verdict,
)
from services.reward_service.execution import Execution, Outcome, SlotLost
from services.reward_service.grade import Grade
from services.reward_service.jailed.canonical import canonical
from services.reward_service.judge import judge_calls, judge_program
from services.reward_service.slot import Slot

_log = Log("reward_service")

_PATIENCE = 4.0
"""How many times longer the second run may idle when the first may have been starved."""


class SandboxCrashed(RuntimeError):
    """One answer lost two slots, one after the other."""


async def grade_answer(
    code: str, grader: PythonFunctionGrader | PythonStdioGrader, slot: Slot
) -> Grade:
    """Run an answer's code against its tests.

    Raises:
        SandboxCrashed: it lost its slot twice.
        SlotFailed: no process could be had, which is nothing the answer did.
        NoCanonicalText: an expected value cannot be compared.
    """
    if isinstance(grader, PythonFunctionGrader):
        return await _grade_function(code, grader, slot)
    return await _grade_program(code, grader, slot)


async def _grade_function(code: str, grader: PythonFunctionGrader, slot: Slot) -> Grade:
    """One process makes all calls; expected results are compared here."""
    expected = [canonical(test.expected) for test in grader.tests]
    order: dict[str, object] = {
        "source": code,
        "entry_point": grader.entry_point,
        "calls": [test.args for test in grader.tests],
    }
    outcome = await _run(_execution(order, b"", grader.limits), slot)
    judged = judge_calls(expected, outcome, grader.limits)
    return Grade(
        verdict=judged.verdict, passed=judged.passed, cpu_s=outcome.cpu_s, detail=judged.detail
    )


async def _grade_program(code: str, grader: PythonStdioGrader, slot: Slot) -> Grade:
    """One process a test, up to the first failure."""
    cpu_s = 0.0
    for passed, test in enumerate(grader.tests):
        stdin = test.stdin.encode("utf-8", "surrogatepass")
        outcome = await _run(_execution({"source": code}, stdin, grader.limits), slot)
        cpu_s += outcome.cpu_s
        judged = judge_program(test.expected, outcome, grader.limits)
        if judged.verdict is not Verdict.ACCEPTED:
            detail = f"test {passed + 1}: {judged.detail}"
            return Grade(verdict=judged.verdict, passed=passed, cpu_s=cpu_s, detail=detail)
    return Grade(verdict=Verdict.ACCEPTED, passed=len(grader.tests), cpu_s=cpu_s, detail="")


async def _run(execution: Execution, slot: Slot) -> Outcome:
    """Run to an outcome that is the answer's own doing.

    A lost slot is started anew and the run repeated once. A process that was stopped while
    idle on a busy machine may only have been starved, so it gets a second, longer chance.
    """
    outcome = await _run_retrying(execution, slot)
    if outcome.killed == "wall" and _machine_is_contended():
        RewardMetrics.retries.inc()
        patient = Execution(
            payload=execution.payload,
            stdin=execution.stdin,
            limits=execution.limits,
            wall_s=_PATIENCE * execution.wall_s,
        )
        outcome = await _run_retrying(patient, slot)
    return outcome


async def _run_retrying(execution: Execution, slot: Slot) -> Outcome:
    try:
        return await slot.run(execution)
    except SlotLost as error:
        _log.warning("slot_lost", reason=str(error))
        RewardMetrics.retries.inc()
        await slot.start()
    try:
        return await slot.run(execution)
    except SlotLost as error:
        raise SandboxCrashed(str(error)) from error


def _execution(order: dict[str, object], stdin: bytes, limits: Limits) -> Execution:
    return Execution(
        payload=json.dumps(order).encode("ascii"),
        stdin=stdin,
        limits=limits,
        wall_s=2 * limits.cpu_s + 2.0,
    )


def _machine_is_contended() -> bool:
    return os.getloadavg()[0] > 1.5 * (os.cpu_count() or 1)
