"""Rewards from passed tests, comparisons of outputs and values, and what is learned."""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.protocol.reward.code_tests import (
    CallChecker,
    CodeTest,
    ExactChecker,
    FloatChecker,
    TokensChecker,
    TrailingSpaceChecker,
    UnorderedChecker,
)
from services.reward_service.grading.tools import Estimates
from services.reward_service.jailed.codec import encode
from services.reward_service.judging.comparison import output_is_right, result_is_right
from services.reward_service.judging.policy import policy_reward, still_matters

TESTS = [
    CodeTest(stdin="", expected="", weight=1, group="small"),
    CodeTest(stdin="", expected="", weight=1, group="small"),
    CodeTest(stdin="", expected="", weight=4, group="large"),
    CodeTest(stdin="", expected="", weight=2),
]
POLICIES = ("all", "fraction", "weighted", "grouped")


@pytest.mark.parametrize(
    ("passed", "rewards"),
    [
        ({0, 1, 2, 3}, (1, 1, 1, 1)),
        ({0, 2}, (0, 0.5, 0.625, 0.5)),
        ({0, 1}, (0, 0.5, 0.25, 0.25)),
        ({3}, (0, 0.25, 0.25, 0.25)),
        (set(), (0, 0, 0, 0)),
    ],
)
def test_each_policy_rewards_as_declared(passed: set[int], rewards: tuple[float, ...]) -> None:
    assert tuple(policy_reward(policy, TESTS, passed) for policy in POLICIES) == rewards


def test_weights_that_add_up_to_one_reward_all_tests_with_one() -> None:
    tests = [CodeTest(stdin="", expected="", weight=weight) for weight in (0.7, 0.1, 0.2)]
    assert policy_reward("weighted", tests, [2, 1, 0]) == 1.0


@given(st.sampled_from(POLICIES), st.permutations(range(4)), st.sets(st.integers(0, 3)))
@settings(max_examples=200)
def test_stopping_early_never_changes_a_reward(
    policy: Any, order: list[int], right: set[int]
) -> None:
    passed: set[int] = set()
    failed: set[int] = set()
    for number in order:
        if still_matters(policy, number, TESTS, failed):
            (passed if number in right else failed).add(number)
    assert policy_reward(policy, TESTS, passed) == policy_reward(policy, TESTS, right)


@pytest.mark.parametrize(
    ("checker", "right", "wrong"),
    [
        (ExactChecker(), [b"1 2\n3\n"], [b"1 2\n3", b"1 2 \n3\n"]),
        (TrailingSpaceChecker(), [b"1 2 \r\n3", b"1 2\n3\n\n"], [b"1  2\n3\n", b"\n1 2\n3\n"]),
        (TokensChecker(), [b"1\n2\t3"], [b"1 23", b"1 2 3 4"]),
        (UnorderedChecker(), [b"3\n1 2"], [b"2 1\n3\n", b"3\n3\n1 2\n"]),
        (FloatChecker(absolute=0.01), [b"1.009 2e0 3"], [b"1.02 2 3", b"nan 2 3", b"1 2"]),
        (FloatChecker(absolute=10.0), [b"1 2 3"], [b"1 2 x", b"inf 2 3", b"0_1 2 3"]),
    ],
)
def test_checkers_of_outputs(checker: Any, right: list[bytes], wrong: list[bytes]) -> None:
    assert all(output_is_right(checker, "1 2\n3\n", output) for output in right)
    assert not any(output_is_right(checker, "1 2\n3\n", output) for output in wrong)


@pytest.mark.parametrize(
    ("checker", "static", "expected", "right", "wrong"),
    [
        (CallChecker(), False, [1, "a"], [[1, "a"], (1, "a")], [[1.0, "a"], [True, "a"], "[1,a]"]),
        (CallChecker(), True, [2.0, [1]], [[2, (1,)], [2.0, [True]]], [[2, 1], [2, [1, 1]]]),
        (UnorderedChecker(), False, [[1, 2], [3]], [[[3], [1, 2]]], [[[2, 1], [3]], [[3], [3]], 1]),
        (FloatChecker(), False, {"a": [0.5]}, [{"a": [0.5 + 1e-9]}, {"a": (0.5,)}], [{"a": [0.6]}]),
        (FloatChecker(), False, 10**400, [10**400], [10**400 + 1, 1.0]),
    ],
)
def test_checkers_of_results(
    checker: Any, static: bool, expected: Any, right: list[Any], wrong: list[Any]
) -> None:
    for value in right:
        assert result_is_right(checker, expected, encode(value), static_types=static), value
    for value in [*wrong, None, float("nan")]:
        assert not result_is_right(checker, expected, encode(value), static_types=static), value


def test_what_is_no_text_of_a_value_equals_nothing() -> None:
    for text in ("", "i", "[i1", "i1]", "x" * (1 << 21), "f1e", "<[]>", "{[]:i1}"):
        for static in (False, True):
            assert not result_is_right(CallChecker(), 1, text, static_types=static)
        for checker in (FloatChecker(), UnorderedChecker()):
            assert not result_is_right(checker, 1, text, static_types=False)


BILLION = "1000000000"


@pytest.mark.parametrize(
    ("expected", "right", "wrong"),
    [
        # An integer is known exactly: no other is close, and a decimal only if it rounds to it.
        (BILLION, [BILLION, "+1000000000", "01000000000", "1e9", "1000000000.4"], ["1000000500"]),
        (BILLION, ["999999999.6"], ["1000000001", "1000000500.0", "1.0000005e9", "999999999"]),
        ("3", ["3", "3.0", "2.9999999", "3.0000001"], ["4", "2", "3.0001", "3.5"]),
        ("0", ["-0", "0.0", "1e-10"], ["1", "1e-8"]),
        # What is expected as a decimal is close to all that is.
        ("1e9", ["1000000500", "1000000500.0"], ["1000002000"]),
        ("0.5", ["0.5000001", ".5", "5e-1"], ["0.50001", "0.5f", "0,5", "0x1p-1", "0_0.5"]),
        ("nan", ["nan", "NaN", "-nan"], ["0", "inf", "1e999", "none"]),
        ("1.5", [], ["nan", "inf", "-nan"]),
        ("inf", ["inf", "Infinity", "+INF"], ["-inf", "1e999", "9" * 400, "nan", "1e308"]),
        ("1e999", ["1e999"], ["inf", "1e998", "9e998"]),
        ("9" * 350, ["9" * 350], ["9" * 349 + "8", "1e350", "inf", "9" * 349 + "8.0"]),
        ("x 1", ["x 1.0", "x\t1"], ["y 1", "x 1 1", "x"]),
        ("1" * 9000, ["1" * 9000], ["1" * 8999 + "2"]),
    ],
)
def test_a_number_is_close_if_people_would_call_it_the_same(
    expected: str, right: list[str], wrong: list[str]
) -> None:
    for text in right:
        assert output_is_right(FloatChecker(), expected, text.encode()), text
    for text in wrong:
        assert not output_is_right(FloatChecker(), expected, text.encode()), text


def test_a_tolerance_that_the_task_states_holds_for_integers_as_well() -> None:
    one_percent = FloatChecker(relative=0.01)
    assert output_is_right(one_percent, "100000", b"100500")
    assert output_is_right(one_percent, "100000", b"100500.5")
    assert not output_is_right(one_percent, "100000", b"102000")
    assert output_is_right(FloatChecker(absolute=1), "42", b"43")
    assert not output_is_right(FloatChecker(absolute=1), "42", b"44")
    assert not output_is_right(FloatChecker(relative=0.01), "9" * 400, b"9" * 399 + b"8")


@pytest.mark.parametrize(
    ("expected", "right", "wrong"),
    [
        (10**9, [10**9, 1e9, 10**9 + 0.4], [10**9 + 1, 10**9 + 500, 10**9 + 500.0]),
        (1e9, [1e9 + 500, 10**9 + 500], [1e9 + 2000, 10**9 + 2000]),
        ([math.nan, 1.0], [[math.nan, 1.0]], [[0.0, 1.0], [1.0, math.nan]]),
        (math.inf, [math.inf], [-math.inf, math.nan, 1e308, 10**400]),
        (True, [True], [1, 1.0]),
        (list(range(100_000)), [[float(n) for n in range(100_000)]], [list(range(99_999))]),
    ],
)
def test_numbers_of_results_are_close_by_the_same_rules(
    expected: Any, right: list[Any], wrong: list[Any]
) -> None:
    for value in right:
        assert result_is_right(FloatChecker(), expected, encode(value), static_types=False), value
    for value in wrong:
        text = encode(value)
        assert not result_is_right(FloatChecker(), expected, text, static_types=False), value


@given(st.floats(allow_nan=False, allow_infinity=False), st.floats(0, 1))
@settings(max_examples=100)
def test_every_number_is_close_to_itself(value: float, tolerance: float) -> None:
    checker = FloatChecker(absolute=0, relative=tolerance)
    assert result_is_right(checker, value, encode(value), static_types=False)


def test_tests_on_which_answers_fail_come_first_and_times_are_learned() -> None:
    seen = Estimates(1500)  # bytes, enough for two sets
    assert seen.order("k", 4) == [0, 1, 2, 3]
    assert seen.cpu_s("k", "python", default=7.0) == 7.0
    for failed in (2, 3, 3, None):
        seen.learn("k", "python", cpu_s=1.0, failed=failed)
    assert seen.order("k", 4) == [3, 2, 0, 1]
    assert seen.cpu_s("k", "python", default=7.0) == pytest.approx(1.0)
    for key in ("a", "b"):
        seen.learn(key, "python", cpu_s=2.0, failed=1)
    assert seen.order("k", 2) == [0, 1]
    # What nobody was tested with yet will take what others in its language took of late.
    assert 1.0 < seen.cpu_s("k", "python", default=7.0) < 2.0
    assert seen.cpu_s("k", "cpp17", default=7.0) == 7.0
