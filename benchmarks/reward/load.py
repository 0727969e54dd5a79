"""Answers to grade: small programs in Python and C++, some of which never end."""

import random
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from services.protocol.reward.code_graders import CodeGrader
from services.protocol.reward.code_tests import CodeTest, Limits
from services.protocol.reward.reward_service import ScoreJob

TESTS = 15
TIME_LIMIT_S = 0.5
SUFFIX = {"python": ".py", "cpp17": ".cpp"}

_PYTHON = """\
import sys
from collections import Counter

def main():
    data = sys.stdin.read().split()
    numbers = [int(word) for word in data[1 : int(data[0]) + 1]]
    best = here = numbers[0]
    for number in numbers[1:]:
        here = max(number, here + number)
        best = max(best, here)
    value, times = min(Counter(numbers).items(), key=lambda item: (-item[1], item[0]))
    print(best)
    print(value, times)

main()
"""

_CPP = Path(__file__).with_name("answer.cpp").read_text(encoding="utf-8")

_SOURCES = {"python": _PYTHON, "cpp17": _CPP}
_COMMENTS = {"python": "#", "cpp17": "//"}
_ENDLESS = "while True: pass\n"


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One answer and its tests.

    Attributes:
        source: differs between samples in a comment, so that none is graded from a cache.
        ends: false for one that uses its time up on the first test.
    """

    language: str
    source: str
    tests: tuple[tuple[str, str], ...]
    ends: bool = True

    def job(self, name: str) -> ScoreJob:
        """The same for the reward service."""
        return ScoreJob(
            job_id=name, completion=self.source, grader=_grader(self.language, self.tests)
        )


def shared_tests(count: int = TESTS, numbers: int = 1000) -> tuple[tuple[str, str], ...]:
    """Inputs of a thousand numbers, and what the programs above print for them."""
    draw = random.Random(0)
    made = []
    for _ in range(count):
        values = [draw.randint(-100, 100) for _ in range(numbers)]
        best = here = values[0]
        for value in values[1:]:
            here = max(value, here + value)
            best = max(best, here)
        often = min(set(values), key=lambda value: (-values.count(value), value))
        stdin = f"{numbers}\n{' '.join(map(str, values))}\n"
        made.append((stdin, f"{best}\n{often} {values.count(often)}\n"))
    return tuple(made)


def samples(
    language: str, count: int, *, tests: tuple[tuple[str, str], ...], round_: int = 0
) -> list[Sample]:
    """Right answers, no two alike, also in another round."""
    mark = _COMMENTS[language]
    return [
        Sample(
            language=language,
            source=f"{_SOURCES[language]}{mark} answer {round_}.{number}\n",
            tests=tests,
        )
        for number in range(count)
    ]


def with_time_outs(found: list[Sample], part: float) -> list[Sample]:
    """The same, of which every so many never end."""
    every = round(1 / part)
    return [
        replace(one, source=_ENDLESS + one.source, ends=False)
        if number % every == every - 1
        else one
        for number, one in enumerate(found)
    ]


@cache
def _grader(language: str, tests: tuple[tuple[str, str], ...]) -> CodeGrader:
    """One object for all samples of the same tests, as in a batch with a grader for all."""
    return CodeGrader(
        kind="code",
        language=language,
        tests=[CodeTest(stdin=stdin, expected=expected) for stdin, expected in tests],
        limits=Limits(cpu_s=TIME_LIMIT_S),
    )
