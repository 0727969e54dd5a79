"""Turns what a process did into a verdict, outside the jail. Pure functions.

A process can write megabytes. No more of it is read here than the tests ask for.
"""

import signal
from dataclasses import dataclass
from functools import cache
from itertools import takewhile

from services.protocol.reward.code_tests import Limits
from services.protocol.reward.reward_service import Verdict
from services.reward_service.jailed.answer import (
    NO_MEMORY,
    NOT_ENCODABLE,
    RAISED,
    UNCOMPILED,
    VALUE,
)
from services.reward_service.languages import languages
from services.reward_service.sandbox.execution import Outcome

_DETAIL_CHARACTERS = 200
_SAID_BYTES = 1000
_LAST_BYTES = 1 << 13
"""Of standard error, where an interpreter says why it ended, and then where it was."""


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
    # What follows the last line break was cut off, and one line too many is as bad as any number.
    written = outcome.report.split(b"\n", count + 1)[:-1]
    lines = [line.decode("ascii", errors="replace") for line in written]
    if lines and lines[0].startswith(UNCOMPILED):
        return JudgedCalls(lines=[], failure=failed(Verdict.COMPILE_ERROR, lines[0][1:]))
    results = list(takewhile(lambda line: line[:1] in (VALUE, NOT_ENCODABLE), lines))
    failure = bad_end(outcome, limits)
    if failure is None and len(results) == count == len(lines):
        return JudgedCalls(lines=results, failure=None)
    if failure is None:
        reason = "the number of results is not the number of calls"
        failure = failed(Verdict.RUNTIME_ERROR, reason)
    results = results[: count - 1]
    if len(results) < len(lines) and lines[len(results)].startswith(RAISED):
        failure = failed(failure.verdict, lines[len(results)][1:])
    return JudgedCalls(lines=results, failure=failure)


def judge_program(outcome: Outcome, limits: Limits) -> Judgement | None:
    """Why a program's run failed, None if only its output is left to compare."""
    if outcome.report.startswith(UNCOMPILED.encode()):
        return failed(Verdict.COMPILE_ERROR, said(outcome)[1:])
    return bad_end(outcome, limits)


def said(outcome: Outcome) -> str:
    """The beginning of the first line of a report."""
    return outcome.report[:_SAID_BYTES].decode("ascii", errors="replace").partition("\n")[0]


def bad_end(outcome: Outcome, limits: Limits) -> Judgement | None:
    """The failure of a process that did not end by itself with status 0.

    Kernel facts come first. The label of memory and of exceptions rests on what the process
    reports of itself; a lie there only renames a failure.
    """
    most = limits.output_kb << 10
    written = max(len(outcome.stdout), len(outcome.stderr), len(outcome.report))
    if outcome.exit_code == -signal.SIGXFSZ or written >= most:  # whatever it did after that
        return failed(Verdict.OUTPUT_LIMIT, f"wrote {limits.output_kb} KiB or more")
    if outcome.killed == "cpu" or outcome.cpu_s >= limits.cpu_s:
        return failed(Verdict.TIME_LIMIT, f"used {outcome.cpu_s:.2f} s of processor time")
    if outcome.killed == "wall":
        return failed(Verdict.TIME_LIMIT, f"not finished after {outcome.wall_s:.1f} s")
    if outcome.killed == "peer_ended":
        return failed(Verdict.RUNTIME_ERROR, "did not end when the process that it calls had")
    if outcome.exit_code == 0:
        return None
    if _ran_out_of_memory(outcome):
        return failed(Verdict.MEMORY_LIMIT, f"needs more than {limits.memory_mb} MiB")
    if outcome.exit_code < 0:
        return failed(Verdict.RUNTIME_ERROR, f"ended by {_signal_name(-outcome.exit_code)}")
    last_words = outcome.stderr[-_SAID_BYTES:].decode(errors="replace").strip().splitlines()
    last = last_words[-1] if last_words else f"exit {outcome.exit_code}"
    return failed(Verdict.RUNTIME_ERROR, last)


def _ran_out_of_memory(outcome: Outcome) -> bool:
    mark = NO_MEMORY.encode()
    reported = outcome.report.startswith(mark) or b"\n" + mark in outcome.report
    last_words = outcome.stderr[-_LAST_BYTES:]
    says_so = any(words in last_words for words in _out_of_memory())
    return reported or says_so or outcome.exit_code == -signal.SIGKILL


@cache
def _out_of_memory() -> tuple[bytes, ...]:
    """Of all languages: it tells one failure from another, so a lie gains nothing."""
    return tuple(words.encode() for one in languages().values() for words in one.out_of_memory)


def failed(verdict: Verdict, reason: str) -> Judgement:
    """A failure with a reason that may hold anything."""
    return Judgement(verdict=verdict, detail=printable(reason))


def printable(text: str) -> str:
    """At most 200 characters on one line, nothing that a terminal would act on."""
    return "".join(c if c.isprintable() else " " for c in text[:_DETAIL_CHARACTERS]).strip()


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
