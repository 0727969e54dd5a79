"""Whether what a program printed or returned is right. Pure functions.

A result is data made by an untrusted process. It is compared as text, or decoded into exact
built-in types first, so no method of the answer's is ever called. It may be a thousand times as
long as the expected text: no more of it is taken apart than that one has parts.
"""

import math
import re
from typing import Any

from services.protocol.reward.code_tests import (
    Checker,
    ExactChecker,
    FloatChecker,
    TokensChecker,
    UnorderedChecker,
)
from services.reward_service.jailed.codec import NotDecodable, decode, encode

_LISTS = str.maketrans("()", "[]")
_UNREADABLE = object()
"""In the place of a result that is no text of `codec`: equal to nothing."""
_MAX_GROWTH, _MAX_MORE = 16, 64
"""A right result has at most so many times the characters of the expected one: `i1` may return as
the float `f0x1.0000000000000p+0`."""

_INTEGER = re.compile(rb"[-+]?\d+")
_NUMBER = re.compile(rb"[-+]?(\d+(\.\d*)?|\.\d+)(e[-+]?\d+)?", re.IGNORECASE)
_NOT_FINITE = re.compile(rb"[-+]?(inf|infinity|nan)", re.IGNORECASE)
_MAX_WORD = 400
"""Characters of a number that is compared as one: a float has 309 digits before the point."""
_RELATIVE, _OFF_AN_INTEGER = 1e-6, 0.5


def output_is_right(checker: Checker, expected: str, output: bytes) -> bool:
    """Whether an output passes; of the checkers that are no programs."""
    wanted = expected.encode("utf-8", "surrogatepass")
    if output == wanted:
        return True
    if isinstance(checker, ExactChecker):
        return False
    if isinstance(checker, TokensChecker | FloatChecker):
        theirs = wanted.split()
        mine = output.split(None, len(theirs))
        if isinstance(checker, TokensChecker) or len(mine) != len(theirs):
            return mine == theirs
        return all(_close_word(*pair, checker) for pair in zip(theirs, mine, strict=True))
    theirs = _lines(wanted, len(wanted))
    mine = _lines(output, len(theirs))
    if isinstance(checker, UnorderedChecker) and len(mine) == len(theirs):
        return sorted(mine) == sorted(theirs)
    return mine == theirs


def result_is_right(checker: Checker, expected: Any, text: str, *, static_types: bool) -> bool:
    """Whether a call's result, as `codec` writes it, passes.

    Raises:
        NotEncodable: the expected value is not plain data.
    """
    wanted = encode(expected)
    if isinstance(checker, FloatChecker):
        return _close(_listed(expected), _listed(_decoded(text, wanted)), checker)
    if isinstance(checker, UnorderedChecker):
        return _unordered(expected, text, wanted)
    if static_types:
        return bool(_listed(_decoded(text, wanted)) == _listed(expected))
    return _same_type_and_value(wanted, text)


def _lines(output: bytes, most: int) -> list[bytes]:
    """Lines without trailing white space, without empty lines at the end.

    Of more than `most` lines, the rest is one line.
    """
    return [line.rstrip() for line in output.rstrip().split(b"\n", most)]


def _close_word(expected: bytes, word: bytes, tolerance: FloatChecker) -> bool:
    if expected == word:
        return True
    if max(len(expected), len(word)) > _MAX_WORD:
        return False
    if _INTEGER.fullmatch(expected) and _INTEGER.fullmatch(word):
        return _within(int(expected), int(word), tolerance)
    if _NOT_FINITE.fullmatch(expected) and _NOT_FINITE.fullmatch(word):
        return _within(float(expected), float(word), tolerance)
    if not (_NUMBER.fullmatch(expected) and _NUMBER.fullmatch(word)):
        return False
    wanted, number = float(expected), float(word)
    if math.isinf(wanted) or math.isinf(number):  # beyond a float's range, which is no infinity
        return False
    whole = _INTEGER.fullmatch(expected) is not None
    return _within(int(expected) if whole else wanted, number, tolerance)


def _same_type_and_value(wanted: str, text: str) -> bool:
    """A tuple counts as a list, which is all that JSON can say."""
    return len(text) == len(wanted) and text.translate(_LISTS) == wanted.translate(_LISTS)


def _unordered(expected: Any, text: str, wanted: str) -> bool:
    """Equal in type and value but for the order of the outer list's items."""
    if len(text) != len(wanted):
        return False
    value = _decoded(text, wanted)
    if not isinstance(value, list | tuple) or not isinstance(expected, list | tuple):
        return value is not _UNREADABLE and _same_type_and_value(wanted, text)
    mine, theirs = (sorted(encode(_listed(item)) for item in items) for items in (value, expected))
    return mine == theirs


def _within(expected: float, value: float, tolerance: FloatChecker) -> bool:
    """Whether a number is close enough. An infinity is close to itself, NaN to NaN."""
    if expected == value or (expected != expected and value != value):
        return True
    if any(isinstance(one, float) and not math.isfinite(one) for one in (expected, value)):
        return False
    try:
        off = abs(expected - value)
        return off <= tolerance.absolute or off <= _share(expected, value, tolerance)
    except OverflowError:  # an integer beyond a float's range
        return False


def _share(expected: float, value: float, tolerance: FloatChecker) -> float:
    """The relative tolerance, at this size.

    An integer is known exactly: unless the task says otherwise another one is not close to it, and
    a decimal is so only if it would be rounded to it.
    """
    if tolerance.relative is not None:
        return tolerance.relative * abs(expected)
    if isinstance(expected, float):
        return _RELATIVE * abs(expected)
    if isinstance(value, float):
        return min(_RELATIVE * abs(expected), _OFF_AN_INTEGER)
    return 0.0


def _decoded(text: str, wanted: str) -> Any:
    if len(text) > _MAX_GROWTH * len(wanted) + _MAX_MORE:
        return _UNREADABLE
    try:
        return decode(text)
    except NotDecodable:
        return _UNREADABLE


def _listed(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_listed(item) for item in value]
    if isinstance(value, dict):
        return {key: _listed(item) for key, item in value.items()}
    return value


def _close(expected: Any, value: Any, tolerance: FloatChecker) -> bool:
    """Equal but for numbers, at any depth, that are within the tolerance."""
    numbers = (int, float)
    if type(expected) in numbers and type(value) in numbers:
        return _within(expected, value, tolerance)
    if isinstance(expected, list) and isinstance(value, list) and len(expected) == len(value):
        pairs = zip(expected, value, strict=True)
        return all(_close(one, other, tolerance) for one, other in pairs)
    if isinstance(expected, dict) and isinstance(value, dict) and expected.keys() == value.keys():
        return all(_close(expected[key], value[key], tolerance) for key in expected)
    return type(expected) is type(value) and bool(expected == value)
