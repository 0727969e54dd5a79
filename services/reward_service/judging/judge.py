"""Turns what a process did into a verdict, outside the jail. Pure functions."""

import signal
from dataclasses import dataclass
from itertools import takewhile

from services.protocol.reward.reward_service import Limits, Verdict
from services.reward_service.jailed.answer import (
    NO_MEMORY,
    ODD_VALUE,
    RAISED,
    UNCOMPILED,
    VALUE,
)
from services.reward_service.sandbox.execution import Outcome

_DETAIL_CHARACTERS = 200


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """Why a run or a call failed.

    Attributes:
        verdict: never accepted.
        detail: one line for people; holds no expected value.
    """

    verdict: Verdict
    detail: str


@dataclass(frozen=True, kw_only=True)
class JudgedCalls:
    """What a process reported of its calls, in order.

    Attributes:
        lines: a result each, with its first letter.
        failure: of the call after them, None if all calls were reported and the end was clean.
    """

    lines: list[str]
    failure: Judgement | None


def judge_calls(count: int, outcome: Outcome, limits: Limits) -> JudgedCalls:
    """Read the results of at most `count` calls.

    A report beyond the last call, or an end that is not clean, fails the last call even if
    every result is there.
    """
    # What follows the last line break was cut off.
    lines = outcome.report.decode("ascii", errors="replace").split("\n")[:-1]
    if lines and lines[0].startswith(UNCOMPILED):
        return JudgedCalls(lines=[], failure=_failed(Verdict.COMPILE_ERROR, lines[0][1:]))
    results = list(takewhile(lambda line: line[:1] in (VALUE, ODD_VALUE), lines))
    failure = bad_end(outcome, limits)
    if failure is None and len(results) == count == len(lines):
        return JudgedCalls(lines=results, failure=None)
    if failure is None:
        reason = "the number of results is not the number of calls"
        failure = _failed(Verdict.RUNTIME_ERROR, reason)
    results = results[: count - 1]
    if len(results) < len(lines) and lines[len(results)].startswith(RAISED):
        failure = _failed(failure.verdict, lines[len(results)][1:])
    return JudgedCalls(lines=results, failure=failure)


def judge_program(outcome: Outcome, limits: Limits) -> Judgement | None:
    """Why a program's run failed, None if only its output is left to compare."""
    if outcome.report.startswith(UNCOMPILED.encode()):
        reason = outcome.report.decode("ascii", errors="replace").splitlines()[0][1:]
        return _failed(Verdict.COMPILE_ERROR, reason)
    return bad_end(outcome, limits)


def bad_end(outcome: Outcome, limits: Limits) -> Judgement | None:
    """The failure of a process that did not end by itself with status 0.

    Kernel facts come first. The label of memory and of exceptions rests on what the process
    reports of itself; a lie there only renames a failure.
    """
    most = limits.output_kb << 10
    written = max(len(outcome.stdout), len(outcome.stderr), len(outcome.report))
    if outcome.killed == "cpu" or outcome.cpu_s >= limits.cpu_s:
        return _failed(Verdict.TIME_LIMIT, f"used {outcome.cpu_s:.2f} s of processor time")
    if outcome.killed == "wall":
        return _failed(Verdict.TIME_LIMIT, f"not finished after {outcome.wall_s:.1f} s")
    if outcome.killed == "left":
        return _failed(Verdict.RUNTIME_ERROR, "did not end when the process that it calls had")
    if outcome.exit_code == -signal.SIGXFSZ or written >= most:
        return _failed(Verdict.OUTPUT_LIMIT, f"wrote {limits.output_kb} KiB or more")
    if outcome.exit_code == 0:
        return None
    if _ran_out_of_memory(outcome):
        return _failed(Verdict.MEMORY_LIMIT, f"needs more than {limits.memory_mb} MiB")
    if outcome.exit_code < 0:
        return _failed(Verdict.RUNTIME_ERROR, f"ended by {_signal_name(-outcome.exit_code)}")
    last_words = outcome.stderr[-1000:].decode(errors="replace").strip().splitlines()
    said = last_words[-1] if last_words else f"exit {outcome.exit_code}"
    return _failed(Verdict.RUNTIME_ERROR, said)


def _ran_out_of_memory(outcome: Outcome) -> bool:
    reported = f"\n{NO_MEMORY}".encode() in b"\n" + outcome.report
    aborted = outcome.exit_code == -signal.SIGABRT and b"std::bad_alloc" in outcome.stderr[-1000:]
    return reported or aborted or outcome.exit_code == -signal.SIGKILL


def _failed(verdict: Verdict, reason: str) -> Judgement:
    return Judgement(verdict=verdict, detail=printable(reason))


def printable(text: str) -> str:
    """At most 200 characters on one line, nothing that a terminal would act on."""
    return "".join(c if c.isprintable() else " " for c in text[:_DETAIL_CHARACTERS]).strip()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
