import ast
import math
import sys
from pathlib import Path

import pytest

from services.reward_service.jail import jailed_sources
from services.reward_service.jailed.canonical import MAX_DEPTH, NoCanonicalText, canonical


class Anything:
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = None  # type: ignore[assignment]


class Liar(int):
    pass


DISTINCT = [
    None,
    True,
    False,
    0,
    1,
    -1,
    0.0,
    1.0,
    "1",
    "True",
    "i1",
    "",
    [],
    [1],
    [[1]],
    [1, 1],
    ["1,1"],
    {},
    {1: 2},
    {"1": 2},
    {"a": [1]},
    10**5000,
    0.1 + 0.2,
    0.3,
    math.inf,
    -math.inf,
    "é",
    "\ud800",
    "\n",
]


def test_different_values_and_types_have_different_texts() -> None:
    texts = [canonical(value) for value in DISTINCT]
    assert len(set(texts)) == len(DISTINCT)
    assert all(text.isascii() and "\n" not in text for text in texts)


def test_equal_values_have_one_text() -> None:
    assert canonical((1, (2,))) == canonical([1, [2]])
    assert canonical({"b": 1, "a": 2}) == canonical({"a": 2, "b": 1})
    assert canonical(-0.0) == canonical(0.0)
    assert canonical(math.nan) == canonical(-math.nan)


@pytest.mark.parametrize("value", [Anything(), Liar(1), {1}, b"x", 1j, object, [Anything()]])
def test_what_is_not_plain_data_has_no_text(value: object) -> None:
    with pytest.raises(NoCanonicalText):
        canonical(value)


def test_a_cycle_has_no_text() -> None:
    cycle: list[object] = []
    cycle.append(cycle)
    with pytest.raises(NoCanonicalText, match=str(MAX_DEPTH)):
        canonical(cycle)


def test_the_jail_needs_only_the_standard_library_and_itself() -> None:
    allowed = sys.stdlib_module_names | {"services.reward_service.jailed"}
    probe = Path(jailed_sources.__code__.co_filename).parent / "jailed" / "probe.py"
    for name, source in [*jailed_sources(), ("probe", probe.read_text())]:
        for node in ast.walk(ast.parse(source)):
            modules = []
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                modules = [node.module or ""]
            for module in modules:
                inside = module.startswith("services.reward_service.jailed")
                assert inside or module.split(".")[0] in allowed, f"{name} imports {module}"
