"""Tests that are asserts: taken apart into calls, or run as code in a jail beside the answer's."""

import asyncio
from typing import Any

import pytest
from pydantic import ValidationError

from services.protocol.reward.assert_tests import called_function, known_definitions, read_asserts
from services.protocol.reward.code_graders import CodeGrader, PythonAssertsGrader
from services.protocol.reward.reward_service import Score, ScoreJob, Verdict
from services.reward_service.jailed.codec import as_plain, encode
from services.reward_service.judging.assertion import parse_assertion
from services.reward_service.scoring import Scoring

service = pytest.mark.asyncio(loop_scope="session")

CHECK = """
METADATA = {"author": "own"}

def check(candidate):
    '''Small ones first.'''
    assert candidate([3, 1]) == [1, 3], "two"
    assert candidate([]) == []
    assert sorted(candidate(numbers=[2, 2])) == [2, 2]
    assert True, "for debugging"
"""
LOOP = """
import random

def check(candidate):
    rng = random.Random(7)
    for n in range(9):
        numbers = [rng.randrange(9) for _ in range(n)]
        assert candidate(numbers) == sorted(numbers)
"""
SORTS = "def arranged(numbers):\n    return sorted(numbers)"


@pytest.mark.parametrize(
    ("tests", "asserts"),
    [
        (CHECK, 3),
        (LOOP, 1),
        ("assert arranged([1]) == [1]\nassert not arranged([])", 2),
        ("x = arranged([1])\nassert x == [1]\nassert x", 1),
        (["assert arranged([1]) == [1]", "x = arranged([])\nassert x == []"], 2),
        ("def check(f):\n    assert f([1]) == [1]\n\ncheck(arranged)", 1),
    ],
)
def test_asserts_that_stand_alone_are_a_test_each(tests: Any, asserts: int) -> None:
    found = read_asserts(tests)
    assert len(found.asserts) == asserts, found
    assert "assert True" not in found.asserts


def test_the_function_under_test_is_the_one_that_nobody_defines() -> None:
    assert called_function(["assert set(arranged([1])) == set([1])"], "") == "arranged"
    assert called_function("assert close(arranged([1]), 2)", "def close(a, b): ...") == "arranged"
    assert called_function("def check(g):\n    assert g(1)\ncheck(arranged)", "") == "arranged"
    with pytest.raises(ValueError, match="a, b"):
        called_function("assert a(1) == b(1)", "")


def test_what_a_template_defines_is_known_without_the_function_itself() -> None:
    template = "import math\ndef area(r):\n    return r\ndef f(r):\n    '''Doc.'''\n{completion}"
    known = known_definitions(template, "f")
    assert "import math" in known
    assert "def area" in known
    assert "def f" not in known
    assert known_definitions("```\n{completion}\n```", "f") == ""


HOLDS = [
    ("assert f(1) == 2", 2, 3),
    ("assert f(1) == 2", True + 1.0, "2"),
    ("assert f(1) != 2", 3, 2),
    ("assert not f(1)", [], [0]),
    ("assert f(1)", "x", ""),
    ("assert f(1) is True", True, 1),
    ("assert f(1) is None", None, False),
    ("assert abs(f(1) - 0.5) < 1e-6", 0.5000001, 0.6),
    ("import math\nassert f(1)", None, None),
    ("assert math.isclose(f(1), 0.1, rel_tol=1e-3)", 0.10001, 0.2),
    ("assert set(f(1)) == {1, 2}", [2, 1, 1], [1]),
    ("assert sorted(f(1)) == [1, 2]", (2, 1), [2, 1, 0]),
    ("assert f(1) in ([1], [2])", [2], [3]),
    ("assert 1 < f(1) <= 3 and True", 3, 4),
    ("assert f(1)[0] == 'a' or False", ["a"], []),
    ("assert len(f(1)) == 2", {1: 1, 2: 2}, 5),
    ("assert f(1) == {'a': 1}", {"a": 1}, {"a": 2}),
    ("assert f(1) == (1, 2)", (1, 2), [1, 2]),
    ("assert f(1) == 2 ** 70", 1 << 70, 1),
    ("assert round(f(1), 2) == 0.33", 0.3333, 0.4),
    ("assert f(1) == 1j", 1j, 1),
]


@pytest.mark.parametrize(("source", "right", "wrong"), HOLDS)
def test_an_assert_over_one_call_means_outside_what_it_means_in_python(
    source: str, right: Any, wrong: Any
) -> None:
    assertion = parse_assertion(source, "f")
    if source.startswith("import"):
        assert assertion is None
        return
    assert assertion is not None
    assert assertion.arguments == encode([1])
    for value in (right, wrong):
        try:
            exec(source, {"f": lambda _, v=value: v, "math": __import__("math")})
            python = True
        except (AssertionError, TypeError, LookupError):
            python = False
        assert assertion.holds(encode(value)) is python
    assert assertion.holds(encode(right))
    assert not assertion.holds(encode(wrong))


@pytest.mark.parametrize(
    "source",
    [
        "assert f(f(1)) == 1",
        "assert f(1) == f(2)",
        "assert f(x) == 1",
        "assert f(*[1]) == 1",
        "assert f(**{'a': 1}) == 1",
        "assert f(lambda: 1) == 1",
        "assert f(1).count(2) == 1",
        "assert [x for x in f(1)] == []",
        "assert f(1) is 300",
        "assert __import__('os').system('true') or f(1)",
        "assert f(10 ** 10 ** 10) == 1",
        "assert f([0] * 10 ** 9) == 1",
        "assert round(1.5, f(1)) == 1",
        "assert sum(f(1), []) == []",
        "assert f(1) ** 9 == 1",
        "assert '%9999999999d' % f(1)",
        "assert 1 == 1",
        "print(f(1))",
        "assert S().g(1) == 1",
    ],
)
def test_any_other_assert_is_run_as_code_elsewhere(source: str) -> None:
    assert parse_assertion(source, "f") is None


def test_a_method_is_called_on_a_new_object_in_all_its_ways() -> None:
    for call in ("candidate(1, b=2)", "S().g(1, b=2)"):
        found = parse_assertion(f"assert {call} == 3", "S.g")
        assert found is not None
        assert found.arguments == encode(([1], {"b": 2}))


def test_a_set_that_would_take_quadratic_time_is_refused() -> None:
    alike = [n * (2**61 - 1) for n in range(2000)]
    assertion = parse_assertion("assert set(f()) == {1}", "f")
    assert assertion is not None
    assert not assertion.holds(encode(alike))
    assert not assertion.holds(encode(set(alike)))
    assert assertion.holds(encode([1] * 2000))


def test_objects_of_subclasses_are_taken_for_what_they_hold() -> None:
    class Liar(list):
        def __eq__(self, other: object) -> bool:
            return True

        def __iter__(self) -> Any:
            return iter([9])

        __hash__ = None  # type: ignore[assignment]

    assert encode(as_plain({"x": [Liar([1, 2])]})) == encode({"x": [[1, 2]]})


async def graded(scoring: Scoring, code: str, tests: Any, **grader: Any) -> Score:
    model = PythonAssertsGrader(kind="python_asserts", tests=tests, **grader)
    job = ScoreJob(job_id="j", completion=code, grader=model)
    (score,) = await asyncio.wait_for(scoring.score([job]), 120)
    return score


SHAPES: dict[str, tuple[Any, dict[str, Any]]] = {
    "check": (CHECK, {"entry_point": "arranged"}),
    "check with a loop": (LOOP, {"entry_point": "arranged"}),
    "list": (["assert arranged([3, 1]) == [1, 3]", "assert arranged((2, 1)) == [1, 2]"], {}),
    "list of code": (
        ["given = [2, 1]\nfound = arranged(given)\nassert found == [1, 2] and given == [2, 1]"],
        {"entry_point": "arranged"},
    ),
    "setup": (
        ["assert is_sorted(arranged(SOME))"],
        {
            "entry_point": "arranged",
            "setup": "SOME = [5, 4]\ndef is_sorted(a):\n    return a == sorted(a) and len(a) == 2",
        },
    ),
}


@service
@pytest.mark.parametrize("shape", SHAPES)
async def test_right_answers_pass_and_wrong_ones_fail(scoring: Scoring, shape: str) -> None:
    tests, grader = SHAPES[shape]
    good = await graded(scoring, SORTS, tests, **grader)
    assert (good.verdict, good.reward, good.passed) == (Verdict.ACCEPTED, 1.0, good.total), good
    bad = await graded(scoring, "def arranged(numbers):\n    return [*numbers]", tests, **grader)
    assert (bad.verdict, bad.reward) == (Verdict.WRONG_ANSWER, 0.0), bad
    assert bad.run >= 1


@service
async def test_a_method_with_named_arguments_and_a_prelude(scoring: Scoring) -> None:
    code = "class Solution:\n    def plus(self, a: List[int], b: int):\n        return a[0] + b"
    check = "def check(candidate):\n    assert candidate(a = [1], b = 2) == 3\n"
    also = f"{check}    for n in (1, 2):\n        assert Solution().plus([n], n) == 2 * n"
    future = f"from __future__ import annotations\n{code}"
    for tests, answer in ((check, code), (also, code), (check, future)):
        grader = {"entry_point": "Solution().plus", "prelude": "from typing import List"}
        score = await graded(scoring, answer, tests, **grader)
        assert score.reward == 1.0, score


@service
async def test_a_prompts_own_helpers_cannot_be_replaced_by_an_answer(scoring: Scoring) -> None:
    template = (
        "def poly(xs, x):\n    return sum(c * x ** i for i, c in enumerate(xs))\n\n"
        "def root(xs):\n    '''A zero of it.'''\n{completion}"
    )
    check = "def check(candidate):\n    xs = [2, 1]\n    assert abs(poly(xs, candidate(xs))) < 1e-4"
    right = await graded(scoring, "    return -2.0", check, entry_point="root", template=template)
    assert right.reward == 1.0, right
    trick = "    return 5\n\ndef poly(xs, x):\n    return 0"
    wrong = await graded(scoring, trick, check, entry_point="root", template=template)
    assert (wrong.verdict, wrong.reward) == (Verdict.WRONG_ANSWER, 0.0), wrong


@service
async def test_each_assert_counts_where_a_part_is_worth_something(scoring: Scoring) -> None:
    tests = [
        "assert f(1) == 1",
        "for n in (2, 3):\n    assert f(n) == n",
        "assert f(4) == 4",
        "a = f(5)\nassert a == 5",
    ]
    code = "def f(n):\n    if n == 4: raise KeyError(n)\n    return 0 if n == 3 else n"
    score = await graded(scoring, code, tests, policy="fraction", entry_point="f")
    verdicts = {test.test: test.verdict for test in score.tests}
    assert verdicts == {
        0: Verdict.ACCEPTED,
        1: Verdict.WRONG_ANSWER,
        2: Verdict.RUNTIME_ERROR,
        3: Verdict.ACCEPTED,
    }
    assert score.reward == 0.5


@service
async def test_changed_arguments_expected_exceptions_and_counters_cross(scoring: Scoring) -> None:
    tests = [
        "a, b, c = [2, 1], {'x': 1}, {1}\nassert f(a, b, c) is None\n"
        "assert (a, b, c) == ([1, 2], {'x': 2}, {1, 9})",
        "try:\n    f(0)\nexcept ValueError as e:\n    assert 'zero' in str(e)\n"
        "else:\n    assert False",
        "assert f('aab') == {'a': 2, 'b': 1}",
    ]
    code = (
        "from collections import Counter\ndef f(a, b=None, c=None):\n"
        "    if a == 0: raise ValueError('zero')\n    if isinstance(a, str): return Counter(a)\n"
        "    a.sort()\n    b['x'] = 2\n    c.add(9)"
    )
    score = await graded(scoring, code, tests, entry_point="f")
    assert score.reward == 1.0, score


ENDS = {
    "loops": ("def f(x):\n    while True: pass", Verdict.TIME_LIMIT),
    "hoards": ("def f(x):\n    return len(bytearray(1 << 30))", Verdict.MEMORY_LIMIT),
    "floods": ("def f(x):\n    while True: print('x' * 9999)", Verdict.OUTPUT_LIMIT),
    "returns too much": ("def f(x):\n    return 'x' * 999999", Verdict.OUTPUT_LIMIT),
    "raises": ("def f(x):\n    raise KeyError(x)", Verdict.RUNTIME_ERROR),
    "leaves": ("import os\ndef f(x):\n    os._exit(0)", Verdict.RUNTIME_ERROR),
    "is killed": ("import os\ndef f(x):\n    os.abort()", Verdict.RUNTIME_ERROR),
    "is another": ("def g(x):\n    return x", Verdict.RUNTIME_ERROR),
    "returns an object": ("def f(x):\n    return object()", Verdict.WRONG_ANSWER),
    "does not compile": ("def f(x", Verdict.COMPILE_ERROR),
    "makes the tests loop": ("def f(x):\n    return -1", Verdict.WRONG_ANSWER),
}


@service
@pytest.mark.parametrize("name", ENDS)
async def test_an_answer_called_from_another_jail_meets_its_limits(
    scoring: Scoring, name: str
) -> None:
    code, verdict = ENDS[name]
    tests = ["found = f(3)\nassert found == 3", "assert [f(n) for n in (1, 2)] == [1, 2]"]
    limits = {"cpu_s": 0.3 if verdict is Verdict.TIME_LIMIT else 10.0, "memory_mb": 96}
    score = await graded(scoring, code, tests, entry_point="f", limits=limits)
    assert (score.verdict, score.reward) == (verdict, 0.0), score


@service
async def test_tests_that_fail_with_any_answer_are_no_reward(scoring: Scoring) -> None:
    for tests in (["for n in MISSING:\n    assert f(n)"], ["x = 1 / 0\nassert f(x)"]):
        score = await graded(scoring, "def f(x):\n    return 1", tests, entry_point="f")
        assert (score.verdict, score.reward) == (Verdict.INFRA_ERROR, None), score


@service
async def test_an_answer_cannot_hide_behind_tests_that_it_breaks(scoring: Scoring) -> None:
    """Only what happens before the answer said anything is laid to the tests."""
    tests = ["for item in f(3):\n    last = item\nassert last == 1"]
    for result in ("[]", "5", "[[[]]]", "None"):
        code = f"def f(x):\n    return {result}"
        score = await graded(scoring, code, tests, entry_point="f")
        assert (score.verdict, score.reward) == (Verdict.WRONG_ANSWER, 0.0), score


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"tests": "def f(:"}, "line 1"),
        ({"tests": "x = 1"}, "no unknown function"),
        ({"tests": ["assert f(1)", ""]}, r"tests\[1\]"),
        ({"tests": "assert a(1) == b(2)"}, "entry_point"),
        ({"tests": "def check(candidate):\n    assert True"}, "no assert"),
        ({"setup": "1 +"}, "setup"),
        ({"entry_point": "a b"}, "entry_point"),
        ({"template": "x"}, "template"),
    ],
)
def test_asserts_that_cannot_be_used_are_named(change: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError, match=field):
        PythonAssertsGrader.model_validate(
            {"kind": "python_asserts", "tests": "assert f(1) == 1", **change}
        )


def test_a_code_grader_takes_asserts_for_python_only() -> None:
    grader = {"kind": "code", "entry_point": "f", "tests": [{"asserts": "assert f(1)"}]}
    assert CodeGrader.model_validate(grader).total == 1
    with pytest.raises(ValidationError, match="language is cpp17"):
        CodeGrader.model_validate({**grader, "language": "cpp17"})
    with pytest.raises(ValidationError, match="expected"):
        CodeGrader.model_validate({**grader, "tests": [{"args": [1]}]})
    with pytest.raises(ValidationError, match="themselves"):
        CodeGrader.model_validate({**grader, "tests": [{"asserts": "f(1)", "expected": 1}]})
