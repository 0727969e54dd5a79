"""Turns what a process did, printed or returned into a verdict, outside the jail. Pure functions.

A result is data made by an untrusted process. It is compared as text, or decoded into exact
built-in types first, so no method of the answer's is ever called.
"""

import math
import signal
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from services.protocol.reward.code_tests import (
    Checker,
    ExactChecker,
    FloatChecker,
    Limits,
    TokensChecker,
    UnorderedChecker,
)
from services.protocol.reward.reward_service import Verdict
from services.reward_service.jailed.answer import (
    NO_MEMORY,
    NOT_ENCODABLE,
    RAISED,
    UNCOMPILED,
    VALUE,
)
from services.reward_service.jailed.codec import NotDecodable, NotEncodable, decode, encode
from services.reward_service.sandbox.execution import Outcome

_DETAIL_CHARACTERS = 200
_MAX_CHARACTERS = 1 << 20
_LISTS = str.maketrans("()", "[]")
_UNREADABLE = object()
"""In the place of a result that is no text of `codec`: equal to nothing."""


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
        reason = outcome.report.decode("ascii", errors="replace").splitlines()[0][1:]
        return failed(Verdict.COMPILE_ERROR, reason)
    return bad_end(outcome, limits)


def bad_end(outcome: Outcome, limits: Limits) -> Judgement | None:
    """The failure of a process that did not end by itself with status 0.

    Kernel facts come first. The label of memory and of exceptions rests on what the process
    reports of itself; a lie there only renames a failure.
    """
    most = limits.output_kb << 10
    written = max(len(outcome.stdout), len(outcome.stderr), len(outcome.report))
    if outcome.killed == "cpu" or outcome.cpu_s >= limits.cpu_s:
        return failed(Verdict.TIME_LIMIT, f"used {outcome.cpu_s:.2f} s of processor time")
    if outcome.killed == "wall":
        return failed(Verdict.TIME_LIMIT, f"not finished after {outcome.wall_s:.1f} s")
    if outcome.killed == "peer_ended":
        return failed(Verdict.RUNTIME_ERROR, "did not end when the process that it calls had")
    if outcome.exit_code == -signal.SIGXFSZ or written >= most:
        return failed(Verdict.OUTPUT_LIMIT, f"wrote {limits.output_kb} KiB or more")
    if outcome.exit_code == 0:
        return None
    if _ran_out_of_memory(outcome):
        return failed(Verdict.MEMORY_LIMIT, f"needs more than {limits.memory_mb} MiB")
    if outcome.exit_code < 0:
        return failed(Verdict.RUNTIME_ERROR, f"ended by {_signal_name(-outcome.exit_code)}")
    last_words = outcome.stderr[-1000:].decode(errors="replace").strip().splitlines()
    said = last_words[-1] if last_words else f"exit {outcome.exit_code}"
    return failed(Verdict.RUNTIME_ERROR, said)


def _ran_out_of_memory(outcome: Outcome) -> bool:
    reported = f"\n{NO_MEMORY}".encode() in b"\n" + outcome.report
    aborted = outcome.exit_code == -signal.SIGABRT and b"std::bad_alloc" in outcome.stderr[-1000:]
    return reported or aborted or outcome.exit_code == -signal.SIGKILL


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


def output_is_right(checker: Checker, expected: str, output: bytes) -> bool:
    """Whether an output passes; of the checkers that are no programs."""
    wanted = expected.encode("utf-8", "surrogatepass")
    if output == wanted:
        return True
    if isinstance(checker, ExactChecker):
        return False
    if isinstance(checker, TokensChecker):
        return output.split() == wanted.split()
    if isinstance(checker, FloatChecker):
        return _close_words(wanted.split(), output.split(), checker)
    if isinstance(checker, UnorderedChecker):
        return sorted(_lines(output)) == sorted(_lines(wanted))
    return _lines(output) == _lines(wanted)


def result_is_right(checker: Checker, expected: Any, text: str, *, static_types: bool) -> bool:
    """Whether a call's result, as `codec` writes it, passes.

    Raises:
        NotEncodable: the expected value is not plain data.
    """
    if isinstance(checker, FloatChecker):
        return _close(_listed(expected), _listed(_decoded(text)), checker)
    if isinstance(checker, UnorderedChecker):
        return _unordered(expected, text)
    if static_types:
        return bool(_listed(_decoded(text)) == _listed(expected))
    return _same_type_and_value(expected, text)


def _lines(output: bytes) -> list[bytes]:
    """Lines without trailing white space, without empty lines at the end."""
    return [line.rstrip() for line in output.rstrip().split(b"\n")]


def _close_words(expected: list[bytes], words: list[bytes], tolerance: FloatChecker) -> bool:
    if len(expected) != len(words):
        return False
    return all(_close_word(*pair, tolerance) for pair in zip(expected, words, strict=True))


def _close_word(expected: bytes, word: bytes, tolerance: FloatChecker) -> bool:
    if expected == word:
        return True
    try:
        if b"_" in word:  # which Python takes for a number
            return False
        wanted, number = float(expected), float(word)
    except ValueError:
        return False
    return _within(wanted, number, tolerance)


def _same_type_and_value(expected: Any, text: str) -> bool:
    """A tuple counts as a list, which is all that JSON can say."""
    return text.translate(_LISTS) == encode(expected).translate(_LISTS)


def _unordered(expected: Any, text: str) -> bool:
    """Equal in type and value but for the order of the outer list's items."""
    value = _decoded(text)
    if not isinstance(value, list | tuple) or not isinstance(expected, list | tuple):
        return value is not _UNREADABLE and _same_type_and_value(expected, text)
    mine, theirs = (sorted(encode(_listed(item)) for item in items) for items in (value, expected))
    return mine == theirs


def _within(expected: float, value: float, tolerance: FloatChecker) -> bool:
    """Whether a number is close enough; NaN never is."""
    if expected == value:
        return True
    if not (math.isfinite(expected) and math.isfinite(value)):
        return False
    allowed = max(tolerance.absolute, tolerance.relative * abs(expected))
    return bool(abs(expected - value) <= allowed)


def _decoded(text: str) -> Any:
    if len(text) > _MAX_CHARACTERS:
        return _UNREADABLE
    try:
        return decode(text)
    except (NotDecodable, NotEncodable):
        return _UNREADABLE


def _listed(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_listed(item) for item in value]
    if isinstance(value, dict):
        return {key: _listed(item) for key, item in value.items()}
    return value


def _close(expected: Any, value: Any, tolerance: FloatChecker) -> bool:
    """Equal but for floats, at any depth, that are within the tolerance."""
    numbers = (int, float)
    if type(expected) in numbers and type(value) in numbers:
        try:
            return _within(float(expected), float(value), tolerance)
        except OverflowError:  # integers beyond a float's range
            return bool(expected == value)
    if isinstance(expected, list) and isinstance(value, list) and len(expected) == len(value):
        pairs = zip(expected, value, strict=True)
        return all(_close(one, other, tolerance) for one, other in pairs)
    if isinstance(expected, dict) and isinstance(value, dict) and expected.keys() == value.keys():
        return all(_close(expected[key], value[key], tolerance) for key in expected)
    return type(expected) is type(value) and bool(expected == value)
