import ast
import contextlib
import math
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.reward_service.isolation import jail
from services.reward_service.isolation.jail import SLOT, jailed_sources
from services.reward_service.jailed.codec import (
    MAX_DEPTH,
    NotDecodable,
    NotEncodable,
    decode,
    encode,
)


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
    "[1]",
    (1,),
    {1},
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
    1j,
    1 + 0j,
    complex(0.5, -2),
    math.inf,
    -math.inf,
    "é",
    "\ud800",
    "\n",
]


def test_different_values_and_types_have_different_texts() -> None:
    texts = [encode(value) for value in DISTINCT]
    assert len(set(texts)) == len(DISTINCT)
    assert all(text.isascii() and "\n" not in text for text in texts)


def test_equal_values_have_one_text() -> None:
    assert encode({3, 1}) == encode(frozenset([1, 3]))
    assert encode({"b": 1, "a": 2}) == encode({"a": 2, "b": 1})
    assert encode(-0.0) == encode(0.0)
    assert encode(math.nan) == encode(-math.nan)


@pytest.mark.parametrize("value", [Anything(), Liar(1), {b"x"}, b"x", object, [Anything()]])
def test_what_is_not_plain_data_has_no_text(value: object) -> None:
    with pytest.raises(NotEncodable):
        encode(value)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.frozensets(st.integers() | st.text())
        | st.dictionaries(st.text() | st.integers(), inner)
    ),
    max_leaves=20,
)


def test_complex_numbers_and_sets_within_sets_come_back() -> None:
    for value in (complex(0.5, -2.5), [1j], {frozenset({1})}, {(1, frozenset({2})): {3}}, [{1}]):
        back = decode(encode(value))
        assert (back, type(back)) == (value, type(value))
    assert type(decode("[<i1>]")[0]) is set


@given(values)
@settings(max_examples=150)
def test_every_plain_value_comes_back_with_its_types(value: object) -> None:
    back = decode(encode(value))
    assert encode(back) == encode(value)
    assert back == value


@given(values, values)
@settings(max_examples=100)
def test_two_values_share_a_text_only_if_they_are_equal(one: object, other: object) -> None:
    assert (encode(one) == encode(other)) <= (one == other)


@given(st.text(alphabet='if0x1,:"[](){}<>\\uTrueNone-', max_size=30))
@settings(max_examples=300)
def test_any_other_text_is_refused_and_never_breaks_the_reader(text: str) -> None:
    with contextlib.suppress(NotDecodable):
        decode(text)


def test_a_text_nested_too_deeply_is_refused() -> None:
    with pytest.raises(NotDecodable, match="deeper"):
        decode("[" * 5000 + "]" * 5000)


def test_a_cycle_has_no_text() -> None:
    cycle: list[object] = []
    cycle.append(cycle)
    with pytest.raises(NotEncodable, match=str(MAX_DEPTH)):
        encode(cycle)


def test_the_jail_needs_only_the_standard_library_and_itself() -> None:
    allowed = sys.stdlib_module_names | {"services.reward_service.jailed"}
    probe = Path(jail.__file__).parents[1] / "jailed" / "probe.py"
    for name, source in [*jailed_sources(SLOT), ("probe", probe.read_text())]:
        for node in ast.walk(ast.parse(source)):
            modules = []
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                modules = [node.module or ""]
            for module in modules:
                inside = module.startswith("services.reward_service.jailed")
                assert inside or module.split(".")[0] in allowed, f"{name} imports {module}"
