"""Compares mathematical expressions with `math-verify`; runs in a helper process only.

Parsing hostile answers can take any time and memory, so nothing here has limits of its own
but one on memory: the helper process is killed at the deadline.
"""

import logging
import re
import resource
from typing import Any

from services.reward_service.graders.numbers import in_latex

_MEMORY_BYTES = 2 << 30
_ARITHMETIC = re.compile(
    r"(?:[\d\s.+\-*/^(){}!]|\\(?:[dt]?frac|cdot|times|div|sqrt|left|right)(?![A-Za-z]))+"
)
_DECIMAL = re.compile(r"[-+]?\d*\.(\d+)")
_EXACT = 1e-9
"""The share of a number that evaluating it may lose."""
_ROUNDED = 1e-3
"""The share of a number that it may lose where `math-verify` rounds it to six decimal places."""
_SMALL = 1e-6
"""The largest difference that `math-verify` may overlook, however small the numbers are: it rounds
decimals to six places, and takes other expressions for equal that differ by less than 1e-15."""


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
            if answer and expected and _are_small_and_differ(answer[0], expected[0]):
                continue
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
    return rf"\boxed{{{in_latex(text)}}}"


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


def _are_small_and_differ(mine: Any, theirs: Any) -> bool:
    """Whether two values that are equal to `math-verify` are so only because their numbers are
    small: these differ by much in proportion to their size."""
    import sympy

    ordered = not isinstance(theirs, sympy.FiniteSet)
    decimal = any(hasattr(one, "has") and one.has(sympy.Float) for one in (mine, theirs))
    share = _ROUNDED if decimal else _EXACT
    try:
        ours, wanted = _numbers(mine, ordered=ordered), _numbers(theirs, ordered=ordered)
        return len(ours) == len(wanted) and any(
            share * abs(other) < abs(one - other) <= _SMALL
            for one, other in zip(ours, wanted, strict=True)
        )
    except (ArithmeticError, AttributeError, RuntimeError, TypeError, ValueError):
        return False  # some have no value, such as 1/0, or none to 15 digits, such as 0 as a sum


def _numbers(expression: Any, *, ordered: bool) -> list[Any]:
    """The values in a number, list, set, matrix, interval or relation, in the order in which
    `math-verify` compares them; of an equation those on its last side."""
    import sympy

    if isinstance(expression, sympy.And):  # such as `x = 1 = 2`
        expression = getattr(expression, "_unsorted_args", expression.args)[-1]
    if isinstance(expression, sympy.Eq):
        expression = expression.rhs
    if getattr(expression, "is_number", False):
        return [expression.evalf(strict=True)]
    if isinstance(expression, sympy.FiniteSet) and ordered:
        parts = getattr(expression, "_unsorted_args", expression.args)
    elif isinstance(expression, sympy.MatrixBase):
        parts = expression.flat()
    elif isinstance(expression, sympy.Tuple | sympy.Set | sympy.core.relational.Relational):
        parts = expression.args
    else:
        parts = ()
    found = [value for part in parts for value in _numbers(part, ordered=ordered)]
    return found if ordered else sorted(found, key=lambda value: value.as_real_imag())


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
