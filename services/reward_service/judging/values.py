"""Compares a result, which crossed the jail's wall as text, with what is expected. Pure.

A result is data made by an untrusted process. It is compared as text, or decoded into exact
built-in types first, so no method of the answer's is ever called.
"""

import math
from typing import Any

from services.protocol.reward.code_tests import FloatChecker
from services.reward_service.jailed.codec import NotAText, NoText, decode, encode

_LISTS = str.maketrans("()", "[]")
_MOST_CHARACTERS = 1 << 20


def same_type_and_value(expected: Any, text: str) -> bool:
    """Equal in type and value; a tuple counts as a list, which is all that JSON can say.

    Raises:
        NoText: the expected value is not plain data.
    """
    return text.translate(_LISTS) == encode(expected).translate(_LISTS)


def equal(expected: Any, text: str) -> bool:
    """Equal as Python's `==` has it: `1 == 1.0 == True`, and `(1,) != [1]`."""
    found, value = _decoded(text)
    return found and bool(value == expected)


def same_value(expected: Any, text: str) -> bool:
    """Equal values whatever their numeric types, tuples as lists: for static types."""
    found, value = _decoded(text)
    return found and bool(_listed(value) == _listed(expected))


def close(expected: Any, text: str, tolerance: FloatChecker) -> bool:
    """Equal but for floats, at any depth, that are within the tolerance."""
    found, value = _decoded(text)
    return found and _close(_listed(expected), _listed(value), tolerance)


def unordered(expected: Any, text: str) -> bool:
    """Equal in type and value but for the order of the outer list's items."""
    found, value = _decoded(text)
    if not found or not isinstance(value, list | tuple) or not isinstance(expected, list | tuple):
        return found and same_type_and_value(expected, text)
    mine, theirs = (sorted(encode(_listed(item)) for item in items) for items in (value, expected))
    return mine == theirs


def within(expected: float, value: float, tolerance: FloatChecker) -> bool:
    """Whether a number is close enough; NaN never is."""
    if expected == value:
        return True
    if not (math.isfinite(expected) and math.isfinite(value)):
        return False
    allowed = max(tolerance.absolute, tolerance.relative * abs(expected))
    return bool(abs(expected - value) <= allowed)


def _decoded(text: str) -> tuple[bool, Any]:
    if len(text) > _MOST_CHARACTERS:
        return False, None
    try:
        return True, decode(text)
    except (NotAText, NoText):
        return False, None


def _listed(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_listed(item) for item in value]
    if isinstance(value, dict):
        return {key: _listed(item) for key, item in value.items()}
    return value


def _close(expected: Any, value: Any, tolerance: FloatChecker) -> bool:
    numbers = (int, float)
    if type(expected) in numbers and type(value) in numbers:
        try:
            return within(float(expected), float(value), tolerance)
        except OverflowError:  # integers beyond a float's range
            return bool(expected == value)
    if isinstance(expected, list) and isinstance(value, list) and len(expected) == len(value):
        pairs = zip(expected, value, strict=True)
        return all(_close(one, other, tolerance) for one, other in pairs)
    if isinstance(expected, dict) and isinstance(value, dict) and expected.keys() == value.keys():
        return all(_close(expected[key], value[key], tolerance) for key in expected)
    return type(expected) is type(value) and bool(expected == value)
