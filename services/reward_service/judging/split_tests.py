"""Tests that are code: they run in one jail and call the answer in another."""

import marshal
from collections.abc import Callable
from dataclasses import replace

from services.protocol.reward.assert_tests import known_definitions
from services.protocol.reward.code_graders import CodeGrader
from services.protocol.reward.code_tests import Limits
from services.protocol.reward.reward_service import Verdict
from services.reward_service.jailed import tester
from services.reward_service.jailed.answer import RAISED
from services.reward_service.judging.judge import (
    Judgement,
    bad_end,
    failed,
    judge_program,
    printable,
    said,
)
from services.reward_service.sandbox.execution import (
    Execution,
    Outcome,
    Program,
    idle_limit_s,
)
from services.reward_service.sandbox.sandbox import SandboxWorker

_TESTER_LIMITS = Limits(cpu_s=10.0, memory_mb=1024, output_kb=1024)
_TESTER_EXIT_S = 60.0
"""For the tests to say that the answer's process has ended: they are not the answer's to delay."""

_VERDICTS = {
    tester.FAILED: Verdict.WRONG_ANSWER,
    tester.RAISED: Verdict.RUNTIME_ERROR,
    tester.GONE: Verdict.RUNTIME_ERROR,
    tester.LATE: Verdict.TIME_LIMIT,
    tester.LONG: Verdict.OUTPUT_LIMIT,
}


async def run_split(
    program: Program,
    grader: CodeGrader,
    tests: list[str],
    worker: SandboxWorker,
    *,
    stop: bool,
    longest_s: float,
) -> tuple[Outcome, Outcome, list[Judgement | None]]:
    """Run tests until one fails, if they are to stop then, or the answer's process ends.

    At least one test comes to an end. What the answer's process does to itself fails a test
    even if every assert held.

    Args:
        longest_s: wall seconds for which the tests may wait for the answer, whatever its limits.

    Returns:
        The ends of the answer's process and of the tests', and the failures of the tests that
        came to an end, in order; None for one that passed, `infra_error` for one that would have
        failed with any answer.

    Raises:
        SandboxCrashed: the answer lost its slot twice.
        SlotFailed: no process could be had.
    """
    assert grader.entry_point is not None, "checked with the grader"
    wait_s = min(idle_limit_s(grader.limits), longest_s)
    answer = program.callee(grader.entry_point, grader.limits)
    answer = replace(answer, wall_s=wait_s + 2 * idle_limit_s(_TESTER_LIMITS))
    mine, theirs = await worker.run_with_tests(
        answer, _tester(grader, tests, stop=stop), wait_s, longest_s=longest_s
    )
    end = _end(mine, grader.limits)
    failures = _read(theirs, end)
    ended_early = all(failure is None for failure in failures) and len(failures) < len(tests)
    if ended_early:  # whatever the answer gave them was too much for them
        reason = bad_end(theirs, _TESTER_LIMITS)
        verdict = Verdict.RUNTIME_ERROR if reason is None else reason.verdict
        why = reason.detail if reason else "no report"
        failures.append(failed(verdict, f"the tests ended early: {why}"))
    if end is not None and failures[-1] is None:
        failures[-1] = end
    return mine, theirs, failures


def _read(theirs: Outcome, end: Judgement | None) -> list[Judgement | None]:
    failures: list[Judgement | None] = []
    for line in theirs.report.decode("ascii", errors="replace").split("\n")[:-1]:
        kind, reason = line[:1], line[1:]
        if kind == tester.BROKEN:
            failures.append(failed(Verdict.INFRA_ERROR, f"the tests fail by themselves: {reason}"))
        elif kind == tester.PASSED:
            failures.append(None)
        elif kind == tester.GONE and end is not None:
            failures.append(end)
        else:
            failures.append(failed(_VERDICTS[kind], reason))
    return failures


def _end(mine: Outcome, limits: Limits) -> Judgement | None:
    """The failure of the answer's process, None if it ended well."""
    if mine.killed == "peer_ended" and mine.cpu_s < limits.cpu_s:  # the tests had seen enough
        return None
    failure = judge_program(mine, limits)
    if failure is not None and said(mine).startswith(RAISED):
        return replace(failure, detail=printable(said(mine)[1:]))
    return failure


def _tester(grader: CodeGrader, tests: list[str], *, stop: bool) -> Callable[[float], Execution]:
    assert grader.entry_point is not None
    known = known_definitions(grader.template or "", grader.entry_point)
    order = {
        "setup": "\n".join((grader.prelude, known, grader.setup)),
        "entry_point": grader.entry_point,
        "tests": tests,
        "stop": stop,
        "max_bytes": grader.limits.output_kb << 10,
    }

    def waiting(timeout_s: float) -> Execution:
        return Execution(
            payload=marshal.dumps({**order, "timeout_s": timeout_s}),
            stdin=b"",
            limits=_TESTER_LIMITS,
            wall_s=timeout_s + 2 * idle_limit_s(_TESTER_LIMITS),
            peer_ended_s=_TESTER_EXIT_S,
        )

    return waiting
