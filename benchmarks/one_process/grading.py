"""The verdict on an answer of the demo's tasks, without a sandbox.

Only arithmetic of a few names is ever evaluated. What the sandbox would accept besides, such as a
loop, counts as wrong here.
"""

import ast
import warnings
from collections.abc import Mapping
from typing import Any

_ALLOWED = (
    *(ast.Expression, ast.BinOp, ast.UnaryOp, ast.Name, ast.Load, ast.Constant),
    *(ast.Add, ast.Sub, ast.Mult, ast.Mod, ast.FloorDiv, ast.USub),
)
_FUNCTIONS = {"max": max, "min": min}
_ARGUMENTS = ("a", "b", "c")


def passes(answer: str, tests: list[Mapping[str, Any]]) -> bool:
    """Whether the answer returns value and type of every test."""
    if not answer.startswith("return "):
        return False
    try:
        with warnings.catch_warnings(action="ignore", category=SyntaxWarning):
            tree = ast.parse(answer.removeprefix("return ").strip(), mode="eval")
    except (SyntaxError, ValueError):
        return False
    if not all(_harmless(node) for node in ast.walk(tree)):
        return False
    code = compile(tree, "answer", "eval")
    return all(_returns(code, test) for test in tests)


def _harmless(node: ast.AST) -> bool:
    if isinstance(node, ast.Constant):
        return type(node.value) is int
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS
    if isinstance(node, ast.Name):
        return node.id in _FUNCTIONS or node.id in _ARGUMENTS
    return isinstance(node, _ALLOWED)


def _returns(code: Any, test: Mapping[str, Any]) -> bool:
    names = dict(zip(_ARGUMENTS, test["args"], strict=True))
    try:
        found = eval(code, {"__builtins__": {}, **_FUNCTIONS}, names)
    except (TypeError, ZeroDivisionError):
        return False
    return type(found) is type(test["expected"]) and found == test["expected"]
