"""Code in the long form: C++ and Python, checkers, policies, what every test leaves behind."""

import asyncio
import shutil
import socket
import time
from typing import Any

import pytest

from services.protocol.reward.code_graders import CodeGrader
from services.protocol.reward.reward_service import Score, ScoreJob, Verdict
from services.reward_service.scoring import Scoring

pytestmark = pytest.mark.asyncio(loop_scope="session")
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

SUM = [{"stdin": "20 1\n", "expected": "21\n"}, {"stdin": "-3 3\n", "expected": "0\n"}]


async def graded(scoring: Scoring, code: str, **grader: Any) -> Score:
    model = CodeGrader.model_validate({"kind": "code", **grader})
    job = ScoreJob(job_id="j", completion=code, grader=model)
    (score,) = await asyncio.wait_for(scoring.score([job]), 400)
    return score


CPP = {
    "right": (
        "#include <iostream>\nint main(){ long a, b; std::cin >> a >> b; std::cout << a + b; }",
        Verdict.ACCEPTED,
    ),
    "limits": (
        # One program for four verdicts, since compiling is what costs: the input says which.
        "#include <bits/stdc++.h>\n#include <sys/socket.h>\n"
        "int main(){ std::string s; std::cin >> s;"
        'if (s == "loop") for (volatile long i = 0;; i = i + 1);'
        'if (s == "hoard") { std::vector<char> v(1L << 32, 1); std::cout << v[9]; }'
        'if (s == "crash") { int* volatile p = nullptr; *p = 1; }'
        'if (s == "flood") for (;;) std::cout << s << std::endl;'
        'if (s == "net") std::cout << socket(AF_INET, SOCK_STREAM, 0);'
        'if (s == "read") std::cout << std::ifstream("/etc/passwd").good();'
        'if (s == "exec") std::cout << execl("/bin/sh", "sh", (char*)0) << fork(); }',
        Verdict.WRONG_ANSWER,
    ),
    "unfinished": ("int main( {", Verdict.COMPILE_ERROR),
    "reads the host": ('#include "/etc/passwd"\nint main(){}', Verdict.COMPILE_ERROR),
}


@needs_compiler
@pytest.mark.parametrize("name", ["right", "unfinished", "reads the host"])
async def test_a_cpp_program_earns_its_verdict(scoring: Scoring, name: str) -> None:
    code, verdict = CPP[name]
    score = await graded(scoring, f"```cpp\n{code}\n```", language="cpp17", tests=SUM)
    assert score.verdict is verdict, score
    assert score.reward == float(verdict is Verdict.ACCEPTED)
    assert score.compile is not None
    assert score.compile.ok == (verdict is not Verdict.COMPILE_ERROR)
    assert "root:" not in score.compile.message


@needs_compiler
async def test_a_cpp_program_meets_its_limits_and_reaches_nothing(scoring: Scoring) -> None:
    outcomes = {
        "loop": Verdict.TIME_LIMIT,
        "hoard": Verdict.MEMORY_LIMIT,
        "crash": Verdict.RUNTIME_ERROR,
        "flood": Verdict.OUTPUT_LIMIT,
        "net": Verdict.ACCEPTED,
        "read": Verdict.ACCEPTED,
        "exec": Verdict.ACCEPTED,
    }
    answers = {"net": "-1", "read": "0", "exec": "-1-1"}
    tests = [{"stdin": name, "expected": answers.get(name, "")} for name in outcomes]
    score = await graded(
        scoring,
        CPP["limits"][0],
        language="cpp17",
        tests=tests,
        policy="fraction",
        limits={"cpu_s": 0.2},
    )
    assert {name: t.verdict for name, t in zip(outcomes, score.tests, strict=True)} == outcomes
    assert score.reward == pytest.approx(3 / 7)


async def test_a_score_names_the_sandboxes_that_it_took_and_when(scoring: Scoring) -> None:
    began = time.time()
    score = await graded(
        scoring, "```python\nprint(sum(map(int, input().split())))\n```", tests=SUM
    )
    ended = time.time()
    assert score.verdict is Verdict.ACCEPTED
    assert score.uses
    for use in score.uses:
        host, _, number = use.sandbox.rpartition("/")
        assert host.startswith(socket.gethostname())
        assert 0 <= int(number) < scoring.config.slots
        assert began - 0.1 <= use.began_at <= use.began_at + use.seconds <= ended + 0.1


CALLS = """
#define int long long
struct Solution {
    vector<vector<int>> f(vector<int>& a, string s, map<string, double> m, bool b) {
        if (a.empty()) throw runtime_error("empty");
        sort(a.begin(), a.end());
        return {a, {(int)s.size(), (int)(m["x"] * 2), b ? -1 : 0}};
    }
};
"""


@needs_compiler
async def test_a_cpp_method_takes_and_returns_typed_values(scoring: Scoring) -> None:
    code = f"#include <bits/stdc++.h>\nusing namespace std;\n{CALLS}"
    tests = [
        {"args": [[3, -1], 'h\u00e9"(', {"x": 1.5}, True], "expected": [[-1, 3], [5, 3, -1]]},
        {"args": [[2**62], "", {}, False], "expected": [[2**62], [0, 0, 0]]},
        {"args": [[], "", {}, False], "expected": []},
        {"args": [[1], "", {}, False], "expected": [[1], [0, 0, 1]]},
    ]
    score = await graded(
        scoring, code, language="cpp20", entry_point="Solution.f", tests=tests, policy="fraction"
    )
    verdicts = [test.verdict for test in score.tests]
    ok, raised, wrong = Verdict.ACCEPTED, Verdict.RUNTIME_ERROR, Verdict.WRONG_ANSWER
    assert verdicts == [ok, ok, raised, wrong], score
    assert score.reward == 0.5


async def test_calls_after_one_that_fails_are_made_where_they_matter(scoring: Scoring) -> None:
    code = (
        "def f(x):\n    if x == 1: raise ValueError\n    if x == 3:\n"
        "        while True: pass\n    return x"
    )
    tests = [{"args": [x], "expected": x} for x in range(6)]
    grader = {"entry_point": "f", "tests": tests, "limits": {"cpu_s": 0.2}}
    some = await graded(scoring, code, **grader, policy="fraction")
    assert (some.passed, some.run, some.reward) == (4, 6, pytest.approx(4 / 6)), some
    assert some.verdict is Verdict.RUNTIME_ERROR
    every = await graded(scoring, code, **grader)
    assert (every.reward, every.total) == (0.0, 6)
    assert every.run < 6


async def test_no_calls_are_made_once_the_cpu_time_of_all_is_used_up(scoring: Scoring) -> None:
    code = (
        "import os, time\ndef f(x):\n    if x == 3:\n"
        "        while time.process_time() < 0.5: pass\n        os._exit(1)\n    return x"
    )
    tests = [{"args": [x], "expected": x} for x in range(6)]
    grader = {"entry_point": "f", "tests": tests, "limits": {"cpu_s": 4.0}, "policy": "fraction"}
    assert (await graded(scoring, code, **grader)).passed == 5, "the others in another process"
    assert (await graded(scoring, code, **grader, cpu_budget_s=0.3)).passed == 3


async def test_a_method_of_a_class_is_called_on_a_new_object(scoring: Scoring) -> None:
    code = "class S:\n    n = 0\n    def f(self, x):\n        self.n += x\n        return self.n"
    tests = [{"args": [2], "expected": 2}, {"args": [3], "expected": 3, "also": [4]}]
    score = await graded(scoring, code, entry_point="S.f", tests=tests)
    assert score.verdict is Verdict.ACCEPTED, score


CHECK = """
def check(given, expected, got):
    numbers = [int(word) for word in got.split()]
    return sum(numbers) == int(given) and len(numbers) == int(expected)
"""


async def test_a_users_checker_judges_in_a_jail_of_its_own(scoring: Scoring) -> None:
    tests = [{"stdin": "10", "expected": "3"}]
    checker = {"kind": "custom", "source": CHECK}
    right = await graded(scoring, "print(5, 4, 1)", tests=tests, checker=checker)
    assert right.reward == 1.0, right
    wrong = await graded(scoring, "print(5, 5)", tests=tests, checker=checker)
    assert (wrong.verdict, wrong.reward) == (Verdict.WRONG_ANSWER, 0.0)
    raised = await graded(scoring, "print('x')", tests=tests, checker=checker)
    assert (raised.verdict, raised.reward) == (Verdict.WRONG_ANSWER, 0.0), raised


@pytest.mark.parametrize(
    ("returned", "shown"),
    [
        ("-14", "-14"),
        ("1.5", "1.5"),
        ("True", "True"),
        ("['a', (1, None)]", "['a', (1, None)]"),
        ("{'k': {2}}", "{'k': {2}}"),
        ("object()", "(of type object)"),
        ("10 ** 5000", "(cannot be shown)"),
        ("[1] * 9000", "(too long to show: 27,001 characters)"),
    ],
)
async def test_a_wrong_result_is_shown_as_python_writes_it(
    scoring: Scoring, returned: str, shown: str
) -> None:
    tests = [{"args": [], "expected": "right"}]
    score = await graded(scoring, f"def f():\n    return {returned}", tests=tests, entry_point="f")
    assert score.verdict is Verdict.WRONG_ANSWER
    assert score.detail == f"test 1: wrong result {shown}"
    assert score.tests[0].output == shown


async def test_every_test_leaves_a_record(scoring: Scoring) -> None:
    tests = [*SUM, {"stdin": "1 1", "expected": "3"}]
    code = "print(sum(map(int, input().split())), '\\x1b[2J' * 0)"
    score = await graded(scoring, code, tests=tests, policy="weighted")
    assert (score.passed, score.run, score.total, score.first_failure) == (2, 3, 3, 2)
    assert score.tier == scoring.sandbox.tier
    for test in score.tests:
        assert test.cpu_ms > 0
        assert test.wall_ms > 0
        assert test.peak_kb > 1000
        assert test.output.isprintable()
    assert score.tests[2].verdict is Verdict.WRONG_ANSWER
    assert "3" not in score.tests[2].detail
