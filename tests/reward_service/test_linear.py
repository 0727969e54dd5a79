"""All that is done with an answer's text takes time linear in it, whatever the text is.

Work is counted twice: lines of Python, which is exact, and processor time of the thread, where the
work is in C. Both must grow as the text does, within a factor that no quadratic time stays below.
"""

import re
import sys
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from services.protocol.reward.code_tests import (
    Checker,
    ExactChecker,
    FloatChecker,
    Limits,
    TokensChecker,
    TrailingSpaceChecker,
    UnorderedChecker,
)
from services.protocol.reward.grader import FormatGrader
from services.reward_service.graders import numbers
from services.reward_service.graders.code import extract_code
from services.reward_service.graders.maths import decide, final_answer
from services.reward_service.graders.text import format_problem
from services.reward_service.jailed.codec import NotDecodable, decode, encode
from services.reward_service.judging.assertion import parse_assertion
from services.reward_service.judging.comparison import output_is_right, result_is_right
from services.reward_service.judging.judge import judge_calls, judge_program
from services.reward_service.sandbox.execution import Outcome

Work = Callable[[str], object]

FACTOR, SLACK = 8, 3
"""How many times longer the longer text is, and how many times more than that its work may be: of
quadratic work it would be 8."""
FEW, MANY = 400, 8000
"""Characters of the shorter text, for lines and for processor time."""
FREE_LINES, FREE_S = 200, 0.002
"""As little as this counts as this much."""

FORM = FormatGrader(kind="format", tags=["think", "answer"], boxed=True, code=True)
EXTRACTION: dict[str, Work] = {
    "code": extract_code,
    "form": lambda text: format_problem(text, FORM),
    "form after tags": lambda text: format_problem(
        f"<think></think><answer></answer>{text}", FORM.model_copy(update={"tags": []})
    ),
    "boxed": numbers.last_boxed,
    "last line": lambda text: final_answer(text, strict=False),
}
MATHS: dict[str, Work] = {
    "decide": lambda text: decide(text, ["42", "1,2", text[:-1]], strict=False),
    "decide strictly": lambda text: decide(text, ["42"], strict=True),
    "brackets": numbers.brackets,
    "side by side": numbers.are_side_by_side,
}
CHECKERS: list[Checker] = [
    ExactChecker(),
    TrailingSpaceChecker(),
    TokensChecker(),
    FloatChecker(),
    UnorderedChecker(),
]
OUTPUTS: dict[str, Work] = {
    f"{checker.kind} {name}": (
        lambda text, checker=checker, expected=expected: output_is_right(  # type: ignore[misc]
            checker, expected(text), text.encode()
        )
    )
    for checker in CHECKERS
    for name, expected in {
        "short": lambda _: "1 2\n3\n",
        "nearly equal": lambda text: text[:-1] + "x",
        "equal but for space": lambda text: text + "\n",
    }.items()
}
ASSERTS = ("set(f(1)) == {1, 2}", "sorted(f(1)) == [1]", "f(1) == {1: (2, 3)}", "1 in f(1)")


def _decoded(text: str) -> object:
    try:
        return decode(text)
    except NotDecodable:
        return None


def _asserted(source: str) -> Work:
    assertion = parse_assertion(f"assert {source}", "f")
    assert assertion is not None, source
    return assertion.holds


def _outcome(text: str) -> Outcome:
    report = text.encode()
    return Outcome(
        exit_code=1,
        killed=None,
        cpu_s=0,
        wall_s=0,
        peak_kb=0,
        stdout=b"",
        stderr=b"",
        report=report,
    )


LIMITS = Limits(output_kb=65536)
RESULTS: dict[str, Work] = {
    "decode": _decoded,
    "equal results": lambda text: result_is_right(
        ExactChecker(), text, encode(text), static_types=True
    ),
    **{source: _asserted(source) for source in ASSERTS},
    **{
        f"{checker.kind} {static}": (
            lambda text, checker=checker, static=static: result_is_right(  # type: ignore[misc]
                checker, [1] * (len(text) // 8), text, static_types=static
            )
        )
        for checker in (ExactChecker(), FloatChecker(), UnorderedChecker())
        for static in (False, True)
    },
    "calls": lambda text: judge_calls(3, _outcome(text), LIMITS),
    "program": lambda text: judge_program(_outcome(text), LIMITS),
}


def lines_of(work: Work, text: str) -> int:
    """Lines of Python that are run for it."""
    lines = 0

    def count(_: FrameType, event: str, __: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        work(text)
    finally:
        sys.settrace(before)
    return lines


def seconds_of(work: Work, text: str) -> float:
    """Processor seconds of this thread, the least of three times."""
    found = []
    for _ in range(3):
        began = time.thread_time()
        work(text)
        found.append(time.thread_time() - began)
    return min(found)


def grown(unit: str, characters: int) -> str:
    return unit * (characters // len(unit))


def hold_to_linear(
    kinds: dict[str, Work], text_of: Callable[[int], str], characters: int = MANY
) -> None:
    """Hold all kinds of work to it, on texts of a length and on others `FACTOR` times as long."""
    few, more = text_of(FEW), text_of(FEW * FACTOR)
    many, most = text_of(characters), text_of(characters * FACTOR)
    for name, work in kinds.items():
        lines = lines_of(work, more) / max(FREE_LINES, lines_of(work, few))
        assert lines <= FACTOR * SLACK, f"{name}: {lines:.1f} times the lines for {few[:60]!r}..."
        allowed = FACTOR * SLACK * max(FREE_S, seconds_of(work, many))
        assert seconds_of(work, most) <= allowed, f"{name}: on {many[:60]!r}..."


def units(*words: str) -> st.SearchStrategy[str]:
    """What a text may repeat: a few words in any order."""
    return st.lists(st.sampled_from(words), min_size=1, max_size=4).map("".join)


@given(
    units(
        "\\boxed{", "{", "}", "`", "```", "~~~", "\n", " ", "<think>", "</answer>", "answer is", "x"
    )
)
@example("\\boxed{")
@example("\\boxed{}")
@example("```\n")
@settings(max_examples=15)
def test_finding_the_answer_in_a_text_takes_linear_time(unit: str) -> None:
    hold_to_linear(EXTRACTION, lambda size: grown(unit, size))
    hold_to_linear(EXTRACTION, lambda size: "\\boxed{1}" + grown(unit, size) + "}")


@given(units("1", "2", ",", ".", "/", " ", "\\frac", "{", "}", "$", "%", "-", "=", "\\left", "x"))
@example("1")
@example("\\frac1")
@settings(max_examples=8)
def test_comparing_formulas_takes_linear_time(unit: str) -> None:
    hold_to_linear(MATHS, lambda size: grown(unit, size))
    hold_to_linear(MATHS, lambda size: grown(unit, size) + "x")


@given(units("1", "1.5", "\n", " ", "\t", "nan", "e9", "x", "_", "-", "\r", "\x00"))
@example("\n")
@example("1\n")
@settings(max_examples=10)
def test_comparing_outputs_takes_linear_time(unit: str) -> None:
    hold_to_linear(OUTPUTS, lambda size: grown(unit, size))
    hold_to_linear(OUTPUTS, lambda size: "1" + grown(unit, size) + "1")


@given(
    st.sampled_from(["", "[", "<", "=[", "=<", '"', "{i1:"]),
    units(
        "[", "(", "<", "{", ">", "]", ",", ":", "i1", "f0x1p3", '"', "\\u0028", "True", "\n", "="
    ),
    st.sampled_from(["", "]", ">", '"', "}"]),
)
@example("[", "i1,", "i1]")
@example("<", "i1,", "i1>")
@example("[", "<i1>,", "i1]")
@example('"', "\\u0028", '"')
@example("", "i1", "")
@example("", "\n", "")
@example("", "=\n", "")
@settings(max_examples=10)
def test_reading_results_takes_linear_time(opening: str, unit: str, closing: str) -> None:
    hold_to_linear(RESULTS, lambda size: opening + grown(unit, size) + closing)


MODULUS = sys.hash_info.modulus


def colliding(width: int, depth: int, number: int = 0) -> str:
    """A set of sets of integers, all of which share a hash on their level."""
    if depth == 0:
        return f"i{5 + MODULUS * number:x}"
    items = (colliding(width, depth - 1, width * number + one) for one in range(width))
    return f"<{','.join(items)}>"


def wide(size: int) -> str:
    return colliding(max(2, size // 20), 1)


def many_small(size: int) -> str:
    return "[" + ",".join([colliding(300, 1)] * max(1, size // 6000)) + "]"


def deep(size: int) -> str:
    depth = max(2, (size // 20).bit_length() - 1)
    return f"<{colliding(2, depth)},{colliding(2, depth, 1)}>"


def alike(size: int) -> str:
    """Sets that share a hash and all but one of their items: comparing two of them takes long."""
    common = colliding(200, 1)[1:-1]
    last = (f"i{5 + MODULUS * (1000 + one):x}" for one in range(max(2, size // 4000)))
    return f"<{','.join(f'<{common},{one}>' for one in last)}>"


def keys(size: int) -> str:
    numbers_of_keys = range(max(2, size // 25))
    return "{" + ",".join(f"i{5 + MODULUS * one:x}:None" for one in numbers_of_keys) + "}"


@pytest.mark.parametrize("text_of", [wide, many_small, deep, alike, keys])
def test_items_that_share_a_hash_take_no_more_time_than_others(
    text_of: Callable[[int], str],
) -> None:
    hold_to_linear({"decode": _decoded}, text_of, 10 * MANY)
    hold_to_linear({source: _asserted(source) for source in ASSERTS}, text_of)


def test_honest_sets_whose_items_share_a_hash_are_read() -> None:
    """-1 and -2 have one hash in CPython, and so have all tuples and sets that differ in them."""
    side = range(-2, 3)
    for value in (
        {(x, y, z, t) for x in side for y in side for z in side for t in side},
        {(x, y) for x in range(-50, 50) for y in range(-50, 50)},
        {frozenset({x, y}) for x in range(-30, 30) for y in range(-30, 30)},
        {-1: "a", -2: "b", 2**61 - 2: "c"},
        {2**n for n in range(400)},
    ):
        assert decode(encode(value)) == value


def test_equal_items_may_be_as_many_as_they_like() -> None:
    assertion = parse_assertion("assert set(f(1)) == {1, 2}", "f")
    assert assertion is not None
    assert assertion.holds(encode([1, 2] * 50_000))
    assert decode("<" + "i1," * 50_000 + "i1>") == {1}


def test_the_bounds_are_above_what_right_answers_need() -> None:
    boxed = "\\boxed{" + "1+" * 2000 + "1}"
    assert numbers.last_boxed(f"x {boxed} y") == re.sub(r"^\\boxed\{|\}$", "", boxed)
    words = " ".join(map(str, range(200_000)))
    assert output_is_right(TokensChecker(), words, words.replace(" ", "\n").encode())
    assert output_is_right(FloatChecker(), words, words.replace(" ", ".0\n").encode())
    assert output_is_right(UnorderedChecker(), "\n".join("abc"), b"c\nb\na\n\n")
