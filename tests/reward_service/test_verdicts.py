"""Every verdict that an answer can earn, from real sandboxes of both tiers."""

import asyncio
from collections.abc import Callable

import pytest

from services.protocol.reward.code_graders import PythonFunctionGrader
from services.protocol.reward.code_tests import FunctionTest
from services.protocol.reward.reward_service import Score, ScoreJob, Verdict
from services.reward_service.scoring import Scoring

pytestmark = pytest.mark.asyncio(loop_scope="session")
JobMaker = Callable[..., ScoreJob]


async def verdict_of(scoring: Scoring, job: ScoreJob) -> Score:
    (score,) = await asyncio.wait_for(scoring.score([job]), 300)
    assert score.job_id == job.job_id
    return score


FUNCTIONS = {
    "right": ("def f(a, b):\n    return a + b", Verdict.ACCEPTED),
    "fenced": ("Sure:\n```python\ndef f(a, b):\n    return a + b\n```", Verdict.ACCEPTED),
    "wrong": ("def f(a, b):\n    return a - b", Verdict.WRONG_ANSWER),
    "another type": ("def f(a, b):\n    return float(a + b)", Verdict.WRONG_ANSWER),
    "nothing returned": ("def f(a, b):\n    print(a + b)", Verdict.WRONG_ANSWER),
    "raises": ("def f(a, b):\n    return a / 0", Verdict.RUNTIME_ERROR),
    "raises at import": ("raise ValueError('x')", Verdict.RUNTIME_ERROR),
    "no such function": ("def g(a, b):\n    return a + b", Verdict.RUNTIME_ERROR),
    "wrong signature": ("def f(a):\n    return a", Verdict.RUNTIME_ERROR),
    "unfinished": ("def f(a, b:", Verdict.COMPILE_ERROR),
    "zero byte": ("def f(a, b): return 21\0", Verdict.COMPILE_ERROR),
    "half a character": ("x = '\ud800'", Verdict.COMPILE_ERROR),
    "deep brackets": ("(" * 5000, Verdict.COMPILE_ERROR),
    "empty": ("  \n", Verdict.NO_CODE),
    "loops": ("def f(a, b):\n    while True: pass", Verdict.TIME_LIMIT),
    "hoards": ("def f(a, b):\n    return len(bytearray(1 << 30))", Verdict.MEMORY_LIMIT),
    "floods": ("def f(a, b):\n    while True: print('x' * 999)", Verdict.OUTPUT_LIMIT),
    "recurses": ("def f(a, b):\n    return f(a, b)", Verdict.RUNTIME_ERROR),
}


@pytest.mark.parametrize("name", FUNCTIONS)
async def test_a_function_earns_its_verdict(
    scoring: Scoring, function_job: JobMaker, name: str
) -> None:
    code, verdict = FUNCTIONS[name]
    score = await verdict_of(scoring, function_job(code, cpu_s=0.3))
    assert score.verdict is verdict, score
    assert score.reward == (1.0 if verdict is Verdict.ACCEPTED else 0.0)
    assert (score.passed, score.total) == (int(verdict is Verdict.ACCEPTED), 1)


PROGRAMS = {
    "right": ("print(sum(map(int, input().split())))", Verdict.ACCEPTED),
    "right by bytes": (
        "import sys\na, b = sys.stdin.buffer.read().split()\n"
        "sys.stdout.buffer.write(b'%d' % (int(a) + int(b)))",
        Verdict.ACCEPTED,
    ),
    "right by descriptor": (
        "import os\nos.write(1, b'%d\\n' % sum(map(int, os.read(0, 99).split())))",
        Verdict.ACCEPTED,
    ),
    "right from a thread": (
        "import threading\nthreading.stack_size(1 << 26)\n"
        "def main():\n    print(sum(map(int, input().split())))\n"
        "threading.Thread(target=main).start()",
        Verdict.ACCEPTED,
    ),
    "right at exit": (
        "import atexit\natexit.register(lambda: print(sum(map(int, input().split()))))",
        Verdict.ACCEPTED,
    ),
    "right and exits": (
        "import sys\nprint(sum(map(int, input().split())))\nsys.exit(0)",
        Verdict.ACCEPTED,
    ),
    "right and leaves by exit": ("print(sum(map(int, input().split())))\nexit()", Verdict.ACCEPTED),
    "right and leaves by quit": (
        "def main():\n    print(sum(map(int, input().split())))\n    quit(0)\nmain()",
        Verdict.ACCEPTED,
    ),
    "right but leaves as failed": ("print(21)\nexit(3)", Verdict.RUNTIME_ERROR),
    "right under a main guard": (
        "if __name__ == '__main__':\n    print(sum(map(int, input().split())))",
        Verdict.ACCEPTED,
    ),
    "right by a dataclass": (
        "from __future__ import annotations\nfrom dataclasses import dataclass\n"
        "@dataclass\nclass P:\n    a: int\n    b: int\n"
        "p = P(*map(int, input().split()))\nprint(p.a + p.b)",
        Verdict.ACCEPTED,
    ),
    "right after deep recursion": (
        "import sys\nfrom functools import lru_cache\nsys.setrecursionlimit(10**6)\n"
        "@lru_cache(None)\ndef g(n):\n    return 0 if n == 0 else 1 + g(n - 1)\n"
        "g(20000)\nprint(sum(map(int, input().split())))",
        Verdict.ACCEPTED,
    ),
    "wrong": ("print(22)", Verdict.WRONG_ANSWER),
    "silent": ("pass", Verdict.WRONG_ANSWER),
    "right but fails": ("print(21)\nraise SystemExit(1)", Verdict.RUNTIME_ERROR),
    "right but raises": ("print(21)\n1 / 0", Verdict.RUNTIME_ERROR),
    "crashes": ("print(21)\nimport ctypes\nctypes.string_at(0)", Verdict.RUNTIME_ERROR),
    "unfinished": ("print(", Verdict.COMPILE_ERROR),
    "hoards": ("x = [0] * 10**9", Verdict.MEMORY_LIMIT),
    "floods errors": (
        "import sys\nwhile True: sys.stderr.write('x' * 999)",
        Verdict.OUTPUT_LIMIT,
    ),
    "loops": ("while True: pass", Verdict.TIME_LIMIT),
}


@pytest.mark.parametrize("name", PROGRAMS)
async def test_a_program_earns_its_verdict(
    scoring: Scoring, program_job: JobMaker, name: str
) -> None:
    code, verdict = PROGRAMS[name]
    score = await verdict_of(scoring, program_job(code, cpu_s=0.3))
    assert score.verdict is verdict, score


async def test_a_program_stops_at_its_first_failure(
    scoring: Scoring, program_job: JobMaker
) -> None:
    tests = [("1", "1"), ("2", "2"), ("3", "never"), ("4", "4")]
    score = await verdict_of(scoring, program_job("print(input())", tests))
    assert (score.verdict, score.passed, score.total) == (Verdict.WRONG_ANSWER, 2, 4)
    assert score.detail.startswith("test 3:")
    assert "never" not in score.detail


async def test_all_calls_of_a_function_count(scoring: Scoring, function_job: JobMaker) -> None:
    tests = [([[3, 1]], [1, 3]), ([[]], []), ([["b", "a"]], ["a", "b"]), ([[1]], [2])]
    score = await verdict_of(scoring, function_job("def f(x): return sorted(x)", tests))
    assert (score.verdict, score.passed, score.total) == (Verdict.WRONG_ANSWER, 3, 4)
    assert score.detail.startswith("test 4:")


async def test_a_template_completes_an_answer(scoring: Scoring) -> None:
    grader = PythonFunctionGrader(
        kind="python_function",
        entry_point="f",
        template="def f(a, b):\n    return {completion}\n",
        tests=[FunctionTest(args=[1, 2], expected=3), FunctionTest(args=["a", "b"], expected="ab")],
    )
    jobs = [ScoreJob(job_id=code, completion=code, grader=grader) for code in ("a + b", "a - b")]
    right, wrong = await scoring.score(jobs)
    assert (right.job_id, right.verdict, right.reward) == ("a + b", Verdict.ACCEPTED, 1.0)
    assert (wrong.job_id, wrong.verdict, wrong.reward) == ("a - b", Verdict.WRONG_ANSWER, 0.0)


async def test_a_verdict_does_not_depend_on_chance(scoring: Scoring, program_job: JobMaker) -> None:
    code = "import random\nprint(random.random(), list({'a', 'b', 'c', 'd'}), hash('x'))\n#%d"
    jobs = [program_job(code % number) for number in range(9)]
    assert len({score.detail for score in await scoring.score(jobs)}) == 1


async def test_identical_answers_are_run_once(scoring: Scoring, function_job: JobMaker) -> None:
    job = function_job("def f(a, b):\n    return b + a  # only here")
    scores = await scoring.score([job] * 16)
    assert {score.verdict for score in scores} == {Verdict.ACCEPTED}
    assert sorted(score.cached for score in scores) == [False] + [True] * 15
    (again,) = await scoring.score([job])
    assert again.cached
    assert again.seconds == 0.0


async def test_any_module_of_the_standard_library_can_be_imported(
    scoring: Scoring, program_job: JobMaker
) -> None:
    code = (
        "import tomllib, sqlite3, xml.dom.minidom, difflib, wave, email.mime.text, asyncio\n"
        "import json.tool, concurrent.futures.process, encodings.cp1252, ssl, unittest.mock\n"
        "print(21)"
    )
    score = await verdict_of(scoring, program_job(code))
    assert score.verdict is Verdict.ACCEPTED, score
