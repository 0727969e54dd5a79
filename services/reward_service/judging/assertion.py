"""An assert over one call, taken apart: the call goes into a jail, the rest stays here.

What is understood is a small part of Python, listed below and evaluated by this file alone: no
text of tests is ever executed in the service. An assert that has anything else in it, or no call
or several, runs as code in a jail of its own instead; see `split_tests.py`.
"""

import ast
import contextlib
import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cachetools import LRUCache

from services.protocol.reward.assert_tests import CANDIDATE, parsed
from services.reward_service.jailed.codec import (
    NotDecodable,
    NotEncodable,
    decode,
    encode_call,
    refuse_collisions,
)

_MAX_CHARACTERS = 1 << 20
_MAX_ITEMS, _MAX_BITS = 1 << 16, 1 << 12

_BUILTINS = (abs, all, any, bool, complex, float, int, len, list, max, min, round, sorted, str, sum)
_OF_MATH = (math.isclose, math.fabs, math.isnan, math.isinf, math.floor, math.ceil, math.sqrt)
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{one.__name__: one for one in (*_BUILTINS, tuple)},
    **{f"math.{one.__name__}": one for one in _OF_MATH},
    "set": lambda items=(): set(refuse_collisions(list(items))),
    "frozenset": lambda items=(): frozenset(refuse_collisions(list(items))),
}
_OPERATORS: dict[type, Callable[..., Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda one, other: one in other,
    ast.NotIn: lambda one, other: one not in other,
    ast.Not: operator.not_,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}
_NUMBERS = (int, float, complex)


class _NotUnderstood(ValueError):
    """Not of the small part of Python."""


@dataclass(frozen=True, kw_only=True)
class Assertion:
    """One assert.

    Attributes:
        arguments: of its call, as a text of `jailed.codec`.
        expression: what must be true.
        call: the part of the expression that a result replaces.
    """

    arguments: str
    expression: ast.expr
    call: ast.Call

    def holds(self, text: str) -> bool:
        """Whether it is true of a result, a text of `jailed.codec`.

        What Python would raise an exception for is false.
        """
        if len(text) > _MAX_CHARACTERS:
            return False
        try:
            return bool(_value(self.expression, self.call, decode(text)))
        except (NotDecodable, ArithmeticError, LookupError, TypeError, ValueError, RecursionError):
            return False


def parse_assertion(source: str, entry_point: str) -> Assertion | None:
    """The one assert of a source, None if it is not one that can be taken apart."""
    key = source, entry_point
    known = _parsed.get(key)
    if known is None:
        known = _parse(source, entry_point), _PARSED_BYTES + _BYTES_A_CHARACTER * len(source)
        with contextlib.suppress(ValueError):  # it is larger than the whole cache
            _parsed[key] = known
    return known[0]


def _parse(source: str, entry_point: str) -> Assertion | None:
    body = parsed(source, "asserts").body
    if len(body) != 1 or not isinstance(body[0], ast.Assert):
        return None
    expression = body[0].test
    calls = [node for node in ast.walk(expression) if _calls_answer(node, entry_point)]
    if len(calls) != 1 or not isinstance(call := calls[0], ast.Call):
        return None
    try:
        if any(keyword.arg is None for keyword in call.keywords):
            return None
        positional = [_value(argument) for argument in call.args]
        named = {str(one.arg): _value(one.value) for one in call.keywords}
        _contains_call(expression, call)
        arguments = encode_call(positional, named)
    except (_NotUnderstood, NotEncodable, ArithmeticError, LookupError, TypeError, ValueError):
        return None
    return Assertion(arguments=arguments, expression=expression, call=call)


_PARSED_BYTES, _BYTES_A_CHARACTER = 1500, 100
"""What an assert takes in memory when taken apart, about: measured with CPython 3.11."""
_parsed: LRUCache[tuple[str, str], tuple[Assertion | None, int]] = LRUCache(
    64 << 20, getsizeof=lambda kept: kept[1]
)


def _calls_answer(node: ast.AST, entry_point: str) -> bool:
    """Whether a node is `candidate(...)`, `name(...)` or `Class().method(...)`."""
    if not isinstance(node, ast.Call):
        return False
    called = ast.unparse(node.func) if isinstance(node.func, ast.Name | ast.Attribute) else ""
    owner, _, method = entry_point.rpartition(".")
    return called in (CANDIDATE, f"{owner}().{method}" if owner else method)


def _contains_call(node: ast.expr, call: ast.Call) -> bool:
    """Whether the call is within an expression all of which can be evaluated here.

    Raises:
        _NotUnderstood: it cannot.
    """
    if node is call:
        return True
    if isinstance(node, ast.Call):
        parts = [*node.args, *(keyword.value for keyword in node.keywords)]
    else:
        parts = [part for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)]
    within = [_contains_call(part, call) for part in parts]
    if not any(within):
        _value(node)
        return False
    if not _can_hold_a_result(node, within):
        raise _NotUnderstood(type(node).__name__)
    return True


def _can_hold_a_result(node: ast.expr, within: list[bool]) -> bool:
    """Whether whatever a result is, evaluating costs little and means what it means in Python."""
    match node:
        case ast.Call():
            name = ast.unparse(node.func)
            by_place = name not in ("round", "sum", "int") or within == [True, *within[1:]]
            one = name != "sum" or len(within) == 1
            named = all(keyword.arg is not None for keyword in node.keywords)
            return name in _FUNCTIONS and by_place and one and named
        case ast.BinOp():
            return isinstance(node.op, ast.Add | ast.Sub | ast.Div)
        case ast.UnaryOp():
            return type(node.op) in _OPERATORS
        case ast.Compare():
            return _only_words_are_identical(node)
        case ast.Subscript():
            return not isinstance(node.slice, ast.Slice)
        case _:
            return isinstance(node, ast.BoolOp | ast.List | ast.Tuple | ast.Set | ast.Dict)


def _only_words_are_identical(node: ast.Compare) -> bool:
    """`is` has one meaning only for None, True and False."""
    words = [
        isinstance(side, ast.Constant) and (side.value is None or isinstance(side.value, bool))
        for side in node.comparators
    ]
    kinds = [isinstance(one, ast.Is | ast.IsNot) for one in node.ops]
    return all(word for word, identical in zip(words, kinds, strict=True) if identical)


def _value(node: ast.expr, call: ast.Call | None = None, result: Any = None) -> Any:
    """Evaluate an expression, with a result in the place of the call.

    Raises:
        _NotUnderstood: it has a part that is not of the small part of Python, or that would
            take much time or memory. Other exceptions are those of Python.
    """
    if node is call:
        return result

    def of(part: ast.expr) -> Any:
        return _value(part, call, result)

    match node:
        case ast.Constant():
            return node.value
        case ast.List():
            return [of(item) for item in node.elts]
        case ast.Tuple():
            return tuple(of(item) for item in node.elts)
        case ast.Set():
            return {of(item) for item in node.elts}
        case ast.Dict():
            pairs = zip(node.keys, node.values, strict=True)
            return {of(key): of(item) for key, item in pairs if key is not None}
        case ast.Subscript():
            return of(node.value)[of(node.slice)]
        case ast.UnaryOp() if type(node.op) in _OPERATORS:
            return _OPERATORS[type(node.op)](of(node.operand))
        case ast.BinOp() if type(node.op) in _OPERATORS:
            return _combined(node.op, of(node.left), of(node.right))
        case ast.BoolOp():
            return _joined(node, of)
        case ast.Compare():
            return _compared(node, of)
        case ast.Call() if ast.unparse(node.func) in _FUNCTIONS:
            named = {str(one.arg): of(one.value) for one in node.keywords}
            return _FUNCTIONS[ast.unparse(node.func)](*map(of, node.args), **named)
        case _:
            raise _NotUnderstood(type(node).__name__)


def _joined(node: ast.BoolOp, of: Callable[[ast.expr], Any]) -> Any:
    value = None
    for part in node.values:
        value = of(part)
        if bool(value) == isinstance(node.op, ast.Or):
            break
    return value


def _compared(node: ast.Compare, of: Callable[[ast.expr], Any]) -> bool:
    left = of(node.left)
    for kind, side in zip(node.ops, node.comparators, strict=True):
        right = of(side)
        if not _OPERATORS[type(kind)](left, right):
            return False
        left = right
    return True


def _combined(kind: ast.operator, left: Any, right: Any) -> Any:
    """Arithmetic, but nothing that grows beyond measure."""
    numbers = isinstance(left, _NUMBERS) and isinstance(right, _NUMBERS)
    if isinstance(kind, ast.Pow) and not (numbers and _bits(left) * abs(right) <= _MAX_BITS):
        raise _NotUnderstood("a power")
    if isinstance(kind, ast.Mult) and not numbers:
        many, times = (left, right) if isinstance(right, int) else (right, left)
        if not isinstance(times, int) or len(many) * times > _MAX_ITEMS:
            raise _NotUnderstood("a repetition")
    if isinstance(kind, ast.Mod) and not numbers:
        raise _NotUnderstood("a format")
    return _OPERATORS[type(kind)](left, right)


def _bits(number: complex) -> int:
    return number.bit_length() if isinstance(number, int) else 1
