"""A score in a terminal: a row for each test or part, and the verdict."""

from rich.console import Console

from millrace_tools.output import print_line, print_rows
from services.protocol.reward.code_graders import (
    CodeGrader,
    PythonAssertsGrader,
    PythonFunctionGrader,
    PythonStdioGrader,
)
from services.protocol.reward.code_tests import CodeTest
from services.protocol.reward.grader import (
    AnyGrader,
    ExactGrader,
    MathsGrader,
    RegexGrader,
    WeightedGrader,
)
from services.protocol.reward.reward_service import CheckedTest, Score, Verdict

_CODE = (CodeGrader, PythonFunctionGrader, PythonStdioGrader, PythonAssertsGrader)
_TESTS = ("test", "verdict", "cpu ms", "wall ms", "peak MiB", "detail")
_PARTS = ("part", "weight", "verdict", "reward", "detail")
_MAX_CHARACTERS = 200


def print_score(score: Score, grader: AnyGrader, console: Console) -> None:
    """Print the score with what the tests expect, which the owner of the tests may see."""
    if isinstance(grader, WeightedGrader):
        print_rows([_PARTS, *_part_rows(score, grader)], console)
    elif isinstance(grader, _CODE) and score.tests:
        print_rows([_TESTS, *_test_rows(score, grader.as_code())], console)
    reward = "none" if score.reward is None else f"{score.reward:g}"
    line = f"{score.verdict}: {score.passed} of {score.total} tests passed, reward {reward}"
    detail = _detail(score, grader)
    print_line(f"{line} ({detail})" if detail else line, console)


def _part_rows(score: Score, grader: WeightedGrader) -> list[tuple[str, ...]]:
    return [
        (
            declared.grader.kind,
            f"{declared.weight:g}",
            str(part.verdict),
            "none" if part.reward is None else f"{part.reward:g}",
            _detail(part, declared.grader),
        )
        for declared, part in zip(grader.parts, score.parts, strict=False)
    ]


def _detail(score: Score, grader: AnyGrader) -> str:
    """Why the answer is not right, with what would have been."""
    if score.verdict is not Verdict.WRONG_ANSWER:
        return score.detail
    if isinstance(grader, ExactGrader | MathsGrader):
        return f"{score.detail}, expected {_short(grader.expected)}"
    if isinstance(grader, RegexGrader):
        return f"{score.detail}: {grader.pattern}"
    return score.detail


def _test_rows(score: Score, grader: CodeGrader) -> list[tuple[str, ...]]:
    run = {test.test: test for test in score.tests}
    declared = grader.tests or []
    return [
        _test_row(number, run.get(number), test, grader.entry_point)
        for number, test in enumerate(declared)
    ]


def _test_row(
    number: int, run: CheckedTest | None, test: CodeTest, entry_point: str | None
) -> tuple[str, ...]:
    if run is None:
        return (str(number + 1), "not run", "-", "-", "-", "")
    return (
        str(number + 1),
        str(run.verdict),
        f"{run.cpu_ms:.1f}",
        f"{run.wall_ms:.1f}",
        f"{run.peak_kb / 1024:.0f}",
        "" if run.verdict is Verdict.ACCEPTED else _failure(run, test, entry_point),
    )


def _failure(run: CheckedTest, test: CodeTest, entry_point: str | None) -> str:
    """The call or input, what came of it, and what should have."""
    if test.asserts is not None:
        return f"{run.detail}: {' '.join(test.asserts.split())}"[:_MAX_CHARACTERS]
    if test.args is not None:
        given = f"{entry_point}({', '.join(map(repr, test.args))})"
    else:
        given = f"given {test.stdin!r}"
    said = f"{given[:_MAX_CHARACTERS]}: {run.detail}"
    if run.verdict is not Verdict.WRONG_ANSWER:
        return said
    return f"{said}, expected {_short(test.expected)}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MAX_CHARACTERS else f"{text[:_MAX_CHARACTERS]}..."
