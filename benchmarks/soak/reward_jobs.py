"""Jobs of every ending, in Python and C++, and what each must end in."""

import random
from dataclasses import dataclass

from services.protocol.reward.code_tests import CodeTest, Limits
from services.protocol.reward.grader import AnyGrader, CodeGrader, MathsGrader
from services.protocol.reward.reward_service import ScoreJob, Verdict

_STDIN = [CodeTest(stdin="20 1", expected="21"), CodeTest(stdin="2 2", expected="4")]
_CALLS = [CodeTest(args=[20, 1], expected=21), CodeTest(args=[2, 2], expected=4)]
_LIMITS = Limits(cpu_s=0.2, memory_mb=128, output_kb=64)

_PYTHON = CodeGrader(kind="code", tests=_STDIN, limits=_LIMITS)
_FUNCTION = CodeGrader(kind="code", tests=_CALLS, entry_point="f", limits=_LIMITS)
_CPP = CodeGrader(kind="code", tests=_STDIN, language="cpp17", limits=_LIMITS)
_MATHS = MathsGrader(kind="maths", expected="\\frac{1}{2}")

_SUM = "print(sum(map(int, input().split())))"
_CPP_SUM = "#include <iostream>\nint main() { int a, b; std::cin >> a >> b; std::cout << a + b; }"


@dataclass(frozen=True, kw_only=True)
class Kind:
    """Answers of one ending.

    Attributes:
        weight: how many of a hundred jobs, about.
        mark: begins a comment, so that no two answers are alike; empty where they may be.
    """

    completion: str
    grader: AnyGrader
    verdict: Verdict
    weight: float
    mark: str = "#"


KINDS = {
    "right": Kind(completion=_SUM, grader=_PYTHON, verdict=Verdict.ACCEPTED, weight=30),
    "right calls": Kind(
        completion="def f(a, b):\n    return a + b",
        grader=_FUNCTION,
        verdict=Verdict.ACCEPTED,
        weight=20,
    ),
    "wrong": Kind(completion="print(7)", grader=_PYTHON, verdict=Verdict.WRONG_ANSWER, weight=15),
    "raises": Kind(completion="1 / 0", grader=_PYTHON, verdict=Verdict.RUNTIME_ERROR, weight=8),
    "no syntax": Kind(completion="def", grader=_PYTHON, verdict=Verdict.COMPILE_ERROR, weight=5),
    "floods": Kind(
        completion="while True: print('x' * 1000)",
        grader=_PYTHON,
        verdict=Verdict.OUTPUT_LIMIT,
        weight=4,
    ),
    "eats memory": Kind(
        completion="x = bytearray(1 << 28)",
        grader=_PYTHON,
        verdict=Verdict.MEMORY_LIMIT,
        weight=4,
    ),
    "endless": Kind(
        completion="while True: pass", grader=_PYTHON, verdict=Verdict.TIME_LIMIT, weight=1
    ),
    "repeated": Kind(completion=_SUM, grader=_PYTHON, verdict=Verdict.ACCEPTED, weight=8, mark=""),
    "maths": Kind(
        completion="\\boxed{0.50}", grader=_MATHS, verdict=Verdict.ACCEPTED, weight=4, mark=""
    ),
    "C++": Kind(completion=_CPP_SUM, grader=_CPP, verdict=Verdict.ACCEPTED, weight=0.7, mark="//"),
    "C++, no syntax": Kind(
        completion="int main( {", grader=_CPP, verdict=Verdict.COMPILE_ERROR, weight=0.3, mark="//"
    ),
}


def draw(random_: random.Random, number: int) -> tuple[str, ScoreJob]:
    """A job of a random kind, and which."""
    (name,) = random_.choices(list(KINDS), [kind.weight for kind in KINDS.values()])
    kind = KINDS[name]
    completion = f"{kind.completion}\n{kind.mark} {number}\n" if kind.mark else kind.completion
    return name, ScoreJob(job_id=str(number), completion=completion, grader=kind.grader)
