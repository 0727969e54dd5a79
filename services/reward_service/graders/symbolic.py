"""Compares mathematical expressions with `math-verify`; runs in a helper process only.

Parsing hostile answers can take any time and memory, so nothing here has limits of its own
but one on memory: the helper process is killed at the deadline.
"""

import logging
import re
import resource
from typing import Any

_MEMORY_BYTES = 2 << 30
_ARITHMETIC = re.compile(
    r"(?:[\d\s.+\-*/^(){}!]|\\(?:[dt]?frac|cdot|times|div|sqrt|left|right)(?![A-Za-z]))+"
)
_DECIMAL = re.compile(r"[-+]?\d*\.(\d+)")
_EXACT = 1e-9
"""The share of a number that evaluating it may lose."""


def same(arguments: dict[str, Any]) -> dict[str, bool]:
    """Compare `answer` with each of `expected`: are they equal, and is the answer simplified.

    An answer is simplified if evaluating it changes nothing, unless that would also change
    the expected one; and it has no more operations than the expected one has.
    """
    from math_verify import parse, verify

    logging.disable(logging.WARNING)  # it warns that there is no timeout; there is one, outside
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, hard))
    options: dict[str, Any] = {"parsing_timeout": None, "raise_on_error": False}
    answer = parse(_boxed(arguments["answer"]), **options)
    if _is_false(arguments["answer"], options):
        return {"equal": False, "simplified": False}
    for text in arguments["expected"]:
        expected = parse(_boxed(text), **options)
        if verify(expected, answer, timeout_seconds=None, raise_on_error=False):
            return {"equal": True, "simplified": _is_simplified(answer, expected)}
    return {"equal": False, "simplified": False}


def prepare() -> None:
    """Compare once: what `math-verify` loads at its first comparison takes 60 times as long."""
    from math_verify import parse, verify

    logging.disable(logging.WARNING)  # it warns that there is no timeout
    texts = "x^2+2x+1", r"(x+1)^{\frac42}"
    parsed = [parse(_boxed(text), parsing_timeout=None) for text in texts]
    verify(*parsed, timeout_seconds=None)


def _boxed(text: str) -> str:
    return rf"\boxed{{{text}}}"


def _is_false(text: str, options: dict[str, Any]) -> bool:
    """Whether it says that different numbers are equal, as `41=42` and `x=41=42` do.

    `math-verify` takes the last side of an equation for the answer, whatever the others are. Only
    sides of plain arithmetic are compared: of units, degrees and names it knows too little.
    """
    from math_verify import parse

    if "," in text or "=" not in text:
        return False
    sides = [side.strip() for side in text.split("=") if _ARITHMETIC.fullmatch(side)]
    found = [parsed[0] for parsed in (parse(_boxed(side), **options) for side in sides) if parsed]
    numbers = [value for value in found if getattr(value, "is_number", False)]
    decimals = [len(match[1]) for side in sides if (match := _DECIMAL.fullmatch(side))]
    rounded = 10.0 ** -min(decimals) if decimals else 0.0
    return any(_differ(numbers[0], other, rounded) for other in numbers[1:])


def _differ(one: Any, other: Any, rounded: float) -> bool:
    """Whether two numbers differ by more than rounding to a decimal and evaluating them explain."""
    allowed = max(rounded, _EXACT * abs(other.evalf()))
    try:
        return not abs((one - other).evalf()) <= allowed
    except TypeError:  # one of them is no number after all, such as 1/0
        return True


def _is_simplified(answer: list[Any], expected: list[Any]) -> bool:
    import sympy

    if not answer or not expected:
        return True
    mine, theirs = answer[0], expected[0]
    if not isinstance(mine, sympy.Basic) or not isinstance(theirs, sympy.Basic):
        return True
    if _is_evaluated(theirs) and not _is_evaluated(mine):
        return False
    return bool(sympy.count_ops(mine) <= sympy.count_ops(theirs))


def _is_evaluated(expression: Any) -> bool:
    return bool(_evaluated(expression) == expression)


def _evaluated(expression: Any) -> Any:
    """The expression built anew, which makes sympy evaluate it."""
    if not expression.args:
        return expression
    return expression.func(*(_evaluated(argument) for argument in expression.args))
