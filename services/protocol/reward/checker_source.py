"""The source of a user's checker, looked at before any answer is graded. Pure functions."""

import ast

from services.protocol.reward.assert_tests import parsed

_CHECK, _ARGUMENTS = "check", 3


def with_a_check(source: str) -> str:
    """The source, if it can hold `check(given, expected, got)`.

    Raises:
        ValueError: it is not Python, or no call of `check` could succeed.
    """
    tree = parsed(source, "source")
    for one in tree.body:
        if isinstance(one, ast.FunctionDef) and one.name == _CHECK and not _takes(one.args):
            raise ValueError("check must take three arguments: given, expected, got")
    if not _binds_check(tree):
        raise ValueError("source defines no function named check")
    return source


def _takes(arguments: ast.arguments) -> bool:
    """Whether a function can be called with three arguments by place."""
    places = len(arguments.posonlyargs) + len(arguments.args)
    needed = places - len(arguments.defaults)
    named = any(default is None for default in arguments.kw_defaults)
    enough = arguments.vararg is not None or places >= _ARGUMENTS
    return enough and needed <= _ARGUMENTS and not named


def _binds_check(tree: ast.Module) -> bool:
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) if name == _CHECK:
                return True
            case ast.Name(id=name, ctx=ast.Store()) if name == _CHECK:
                return True
            case ast.alias() if (node.asname or node.name) in (_CHECK, "*"):
                return True
    return False
