"""Turns what a process did into a verdict, outside the jail. Pure functions."""

import signal
from dataclasses import dataclass

from services.protocol.reward_service import Limits, Verdict
from services.reward_service.execution import Outcome
from services.reward_service.jailed.answer import (
    NO_MEMORY,
    ODD_VALUE,
    RAISED,
    UNCOMPILED,
    VALUE,
)

_DETAIL_CHARACTERS = 200


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """A verdict over some tests.

    Attributes:
        verdict: accepted, or the first failure.
        passed: tests passed.
        detail: one line for people; holds no expected value.
    """

    verdict: Verdict
    passed: int
    detail: str


def judge_calls(expected: list[str], outcome: Outcome, limits: Limits) -> Judgement:
    """Compare the results of one process's calls with canonical texts, in order.

    A report beyond the last call, or an end that is not clean, fails the answer even if every
    result is right.
    """
    # What follows the last line break was cut off.
    lines = outcome.report.decode("ascii", errors="replace").split("\n")[:-1]
    if lines and lines[0].startswith(UNCOMPILED):
        return Judgement(verdict=Verdict.COMPILE_ERROR, passed=0, detail=printable(lines[0][1:]))
    right = [line == VALUE + text for line, text in zip(lines, expected, strict=False)]
    passed = sum(right)
    first_wrong = right.index(False) if False in right else len(right)
    if first_wrong < len(right) and lines[first_wrong][:1] in (VALUE, ODD_VALUE):
        got = f"test {first_wrong + 1}: wrong result {_shown(lines[first_wrong])}"
        return Judgement(verdict=Verdict.WRONG_ANSWER, passed=passed, detail=printable(got))
    failure = bad_end(outcome, limits)
    if failure is None and lines == [VALUE + text for text in expected]:
        return Judgement(verdict=Verdict.ACCEPTED, passed=passed, detail="")
    if failure is None:
        failure = (Verdict.RUNTIME_ERROR, "the number of results is not the number of calls")
    verdict, reason = failure
    if first_wrong < len(lines) and lines[first_wrong].startswith(RAISED):
        reason = lines[first_wrong][1:]
    test = min(first_wrong + 1, len(expected))
    return Judgement(verdict=verdict, passed=passed, detail=printable(f"test {test}: {reason}"))


def judge_program(expected: str, outcome: Outcome, limits: Limits) -> Judgement:
    """Compare what a program printed for one input; it must also have ended well."""
    if outcome.report.startswith(UNCOMPILED.encode()):
        reason = outcome.report.decode("ascii", errors="replace").splitlines()[0][1:]
        return Judgement(verdict=Verdict.COMPILE_ERROR, passed=0, detail=printable(reason))
    failure = bad_end(outcome, limits)
    if failure is not None:
        return Judgement(verdict=failure[0], passed=0, detail=printable(failure[1]))
    if _trimmed(outcome.stdout) == _trimmed(expected.encode("utf-8", "surrogatepass")):
        return Judgement(verdict=Verdict.ACCEPTED, passed=1, detail="")
    got = outcome.stdout[:_DETAIL_CHARACTERS].decode(errors="replace")
    return Judgement(verdict=Verdict.WRONG_ANSWER, passed=0, detail=printable(f"printed {got!r}"))


def bad_end(outcome: Outcome, limits: Limits) -> tuple[Verdict, str] | None:
    """The verdict of a process that did not end by itself with status 0, and why.

    Kernel facts come first. The label of memory and of exceptions rests on what the process
    reports of itself; a lie there only renames a failure.
    """
    most = limits.output_kb << 10
    written = max(len(outcome.stdout), len(outcome.stderr), len(outcome.report))
    if outcome.killed == "cpu" or outcome.cpu_s >= limits.cpu_s:
        return Verdict.TIME_LIMIT, f"used {outcome.cpu_s:.2f} s of processor time"
    if outcome.killed == "wall":
        return Verdict.TIME_LIMIT, f"not finished after {outcome.wall_s:.1f} s"
    if outcome.exit_code == -signal.SIGXFSZ or written >= most:
        return Verdict.OUTPUT_LIMIT, f"wrote {limits.output_kb} KiB or more"
    if outcome.exit_code == 0:
        return None
    reported_memory = f"\n{NO_MEMORY}".encode() in b"\n" + outcome.report
    if reported_memory or outcome.exit_code == -signal.SIGKILL:
        return Verdict.MEMORY_LIMIT, f"needs more than {limits.memory_mb} MiB"
    if outcome.exit_code < 0:
        return Verdict.RUNTIME_ERROR, f"ended by {_signal_name(-outcome.exit_code)}"
    last_words = outcome.stderr[-1000:].decode(errors="replace").strip().splitlines()
    return Verdict.RUNTIME_ERROR, last_words[-1] if last_words else f"exit {outcome.exit_code}"


def printable(text: str) -> str:
    """At most 200 characters on one line, nothing that a terminal would act on."""
    return "".join(c if c.isprintable() else " " for c in text[:_DETAIL_CHARACTERS]).strip()


def _trimmed(output: bytes) -> list[bytes]:
    """Lines without trailing white space, without empty lines at the end."""
    return [line.rstrip() for line in output.rstrip().split(b"\n")]


def _shown(line: str) -> str:
    return f"({line[1:]})" if line.startswith(ODD_VALUE) else line[1:]


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
