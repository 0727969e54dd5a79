"""Tests that are Python asserts, in the shapes in which data sets have them. Pure functions.

- A text with `def check(candidate):`, as HumanEval and LeetCode-like sets have it.
- A list of texts with an assert or a few statements each, as MBPP has it.
- A text of asserts.

Where asserts stand alone each is a test; where other statements work towards them all of the
text is one test.
"""

import ast
import builtins
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

CANDIDATE = "candidate"
"""A second name of the answer's function, for asserts."""

_CHECK = "check"


@dataclass(frozen=True, kw_only=True)
class AssertTests:
    """Asserts taken apart.

    Attributes:
        setup: statements that the asserts need and that do not call the answer.
        asserts: source of each test.
    """

    setup: str
    asserts: tuple[str, ...]


def read_asserts(tests: str | list[str]) -> AssertTests:
    """Take tests apart.

    Raises:
        ValueError: they are not Python, or test nothing.
    """
    found = _listed(tuple(tests)) if isinstance(tests, list) else _taken_apart(tests)
    if not found.asserts:
        raise ValueError("there is no assert in the tests")
    return found


def parsed(source: str, name: str) -> ast.Module:
    """A module's tree.

    Raises:
        ValueError: it is not Python; says which text, by the name, and which line.
    """
    try:
        return ast.parse(source)
    except SyntaxError as error:
        raise ValueError(f"{name} is not Python: {error.msg}, line {error.lineno}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"{name} is not Python: {error}") from None


def called_function(tests: str | list[str], setup: str) -> str:
    """The function that `check` is called with, or the one that is called and not defined.

    Raises:
        ValueError: there is none, or several.
    """
    trees = [parsed(text, "tests") for text in (tests if isinstance(tests, list) else [tests])]
    for one in trees[0].body:
        if isinstance(one, ast.Expr) and _calls_check(one) and isinstance(one.value, ast.Call):
            return ast.unparse(one.value.args[0])
    known = set(dir(builtins)) | {CANDIDATE} | _defined([*trees, parsed(setup, "setup")])
    names = {
        node.func.id
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
    }
    unknown = sorted(names - known)
    if len(unknown) != 1:
        found = f"they call {', '.join(unknown)}" if unknown else "they call no unknown function"
        raise ValueError(f"the tests do not say what they test: {found}; give entry_point")
    return unknown[0]


def known_definitions(template: str, entry_point: str) -> str:
    """Definitions of a template beside the function that the answer completes.

    Tests may use it (HumanEval's prompts hold helpers), and take it from here, where no
    answer can change it. Empty if the template is no Python with `pass` in the answer's place.
    """
    try:
        tree = parsed(template.replace("{completion}", "    pass\n"), "template")
    except ValueError:
        return ""
    own = entry_point.partition(".")[0]
    kinds = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Assign)
    kept = [one for one in tree.body if isinstance(one, kinds) and getattr(one, "name", "") != own]
    return ast.unparse(_module(kept))


@lru_cache(maxsize=4096)
def _listed(tests: tuple[str, ...]) -> AssertTests:
    for number, test in enumerate(tests):
        if not parsed(test, f"tests[{number}]").body:
            raise ValueError(f"tests[{number}] is empty")
    return AssertTests(setup="", asserts=tests)


@lru_cache(maxsize=4096)
def _taken_apart(source: str) -> AssertTests:
    tree = parsed(source, "tests")
    check = next((one for one in tree.body if _is_check(one)), None)
    if isinstance(check, ast.FunctionDef):
        rest = [one for one in tree.body if one is not check and not _calls_check(one)]
        alone = _asserts_alone(check.body)
        if alone is not None:
            given = check.args.args[0].arg
            return _tests(rest, [_Renamed(given).visit(one) for one in alone])
        text = f"{ast.unparse(_module([*rest, check]))}\n{_CHECK}({CANDIDATE})"
        return AssertTests(setup="", asserts=(text,))
    kinds = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)
    rest = [one for one in tree.body if isinstance(one, kinds)]
    alone = _asserts_alone(one for one in tree.body if not isinstance(one, kinds))
    if alone is not None:
        return _tests(rest, alone)
    return AssertTests(setup="", asserts=(source,))


def _tests(setup: list[ast.stmt], asserts: list[ast.stmt]) -> AssertTests:
    return AssertTests(
        setup=ast.unparse(_module(setup)),
        asserts=tuple(ast.unparse(one) for one in asserts),
    )


def _is_check(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.FunctionDef)
        and statement.name == _CHECK
        and len(statement.args.args) == 1
    )


def _calls_check(statement: ast.stmt) -> bool:
    """Whether it is the `check(f)` that some sets end with: the tester calls it itself."""
    value = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(value, ast.Call) and ast.unparse(value.func) == _CHECK and bool(value.args)


def _asserts_alone(statements: Iterable[ast.stmt]) -> list[ast.stmt] | None:
    """The asserts that test something, None if there is more than asserts.

    `assert True`, which HumanEval's checks end with, would be a gift.
    """
    found: list[ast.stmt] = []
    for one in statements:
        if isinstance(one, ast.Assert):
            if not isinstance(one.test, ast.Constant):
                found.append(one)
        elif not (isinstance(one, ast.Pass) or _is_text(one)):
            return None
    return found


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _defined(trees: list[ast.Module]) -> set[str]:
    names: set[str] = set()
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.alias):
            names.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


class _Renamed(ast.NodeTransformer):
    """Calls the answer `candidate`, whatever the check called it."""

    def __init__(self, given: str) -> None:
        self._given = given

    def visit_Name(self, node: ast.Name) -> ast.Name:
        if node.id == self._given:
            return ast.copy_location(ast.Name(id=CANDIDATE, ctx=node.ctx), node)
        return node


def _module(statements: Sequence[ast.stmt]) -> ast.Module:
    return ast.Module(body=[*statements], type_ignores=[])
