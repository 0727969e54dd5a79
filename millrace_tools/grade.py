"""`millrace grade`: one file of code against a file of tests, without a cluster."""

import argparse
import asyncio
import json
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from millrace_tools.command import FAILED, command, option
from millrace_tools.output import print_line, print_rows
from services.protocol.errors import InvalidInput
from services.protocol.reward.code_graders import CodeGrader, PythonAssertsGrader
from services.protocol.reward.reward_service import CheckedTest, Score, ScoreJob, Verdict
from services.protocol.yaml_text import load_yaml

if TYPE_CHECKING:
    from services.reward_service.scoring import Scoring

_COLUMNS = ("test", "verdict", "cpu ms", "wall ms", "peak MiB", "detail")


@command(
    "grade",
    option("file", help="code, such as answer.py or answer.cpp, or a model's answer"),
    option(
        "--tests",
        required=True,
        help="JSON or YAML: a list of tests or asserts, or a grader of code; or asserts in a .py",
    ),
)
def grade(arguments: argparse.Namespace, console: Console) -> int:
    """Grade a file of code in a sandbox, without a cluster; status 1 if it fails.

    Prints a table in a terminal, the score as JSON elsewhere.
    """
    # Graders take a second to import; only this command needs them.
    from services.reward_service.config import RewardServiceConfig
    from services.reward_service.scoring import Scoring

    job = read_job(arguments.file, arguments.tests)
    logging.getLogger("millrace.reward_service").setLevel(logging.WARNING)
    home = os.path.expanduser("~")  # stays so for a user without a home: then no header is kept
    headers = None if home == "~" else f"{home}/.cache/millrace/headers"
    config = RewardServiceConfig(slots=1, header_cache_dir=headers)
    score = asyncio.run(_graded(job, Scoring(config)))
    if console.is_terminal:
        _show(score, console)
    else:
        from services.reward_service.http_api import score_json

        console.print(score_json(score), markup=False, highlight=False, soft_wrap=True)
    right = score.verdict is Verdict.ACCEPTED and score.passed == score.total
    return 0 if right else FAILED


def read_job(file: str, tests: str) -> ScoreJob:
    """The file of code as a job of the reward service.

    Raises:
        InvalidInput: naming the file, and the field if there is one.
    """
    from services.reward_service.languages import languages

    path, answer = Path(file), _text("FILE", file)
    suffix = path.suffix.lower()
    language = next((name for name, one in languages().items() if suffix in one.suffixes), None)
    data = _grader_data(tests)
    if language is not None:
        data = {"template": "{completion}", **data}  # all of it is code, whatever fences it has
    if data["kind"] == "python_asserts":
        if language not in (None, "python"):
            raise InvalidInput("FILE", file, "Asserts test Python only.")
        asserts = PythonAssertsGrader.from_data(data, source=tests)
        return ScoreJob(job_id=path.name, completion=answer, grader=asserts)
    data = data if language is None else {"language": language, **data}
    grader = CodeGrader.from_data(data, source=tests)
    if grader.language not in languages():
        fix = f"Known are {sorted(languages())}."
        raise InvalidInput(f"{tests}: language", grader.language, fix)
    if grader.test_set is not None:
        fix = "There are no test sets without a cluster: give the tests."
        raise InvalidInput(f"{tests}: test_set", grader.test_set, fix)
    return ScoreJob(job_id=path.name, completion=answer, grader=grader)


def _grader_data(tests: str) -> dict[str, Any]:
    if tests.lower().endswith(".py"):
        return {"kind": "python_asserts", "tests": _text("--tests", tests)}
    data = _json(tests) if tests.lower().endswith(".json") else load_yaml(tests)
    if isinstance(data, list) and data and all(isinstance(test, str) for test in data):
        return {"kind": "python_asserts", "tests": data}
    if isinstance(data, list):
        return {"kind": "code", "tests": data}
    if isinstance(data, dict):
        return {"kind": "code", **data}
    fix = "Give a list of tests, or a mapping with `tests` and other fields of a grader of code."
    raise InvalidInput(f"{tests}: (whole document)", data, fix)


def _text(field: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidInput(field, path, f"It cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError as error:
        raise InvalidInput(field, path, f"It is not UTF-8 at byte {error.start}.") from None


def _json(path: str) -> Any:
    try:
        return json.loads(_text("--tests", path))
    except (ValueError, RecursionError) as error:
        raise InvalidInput("--tests", path, f"It is not JSON: {error}.") from None


async def _graded(job: ScoreJob, scoring: "Scoring") -> Score:
    try:
        await scoring.start()
        (score,) = await scoring.score([job])
        return score
    finally:
        await scoring.tools.aclose()


def _show(score: Score, console: Console) -> None:
    run = {test.test: test for test in score.tests}
    rows = [_row(number, run.get(number)) for number in range(score.total)]
    if run:
        print_rows([_COLUMNS, *rows], console)
    reward = "none" if score.reward is None else f"{score.reward:g}"
    line = f"{score.verdict}: {score.passed} of {score.total} tests passed, reward {reward}"
    detail = f" ({score.detail})" if score.detail else ""
    print_line(line + detail, console)


def _row(number: int, test: CheckedTest | None) -> tuple[str, ...]:
    if test is None:
        return (str(number + 1), "not run", "-", "-", "-", "")
    return (
        str(number + 1),
        str(test.verdict),
        f"{test.cpu_ms:.1f}",
        f"{test.wall_ms:.1f}",
        f"{test.peak_kb / 1024:.0f}",
        test.detail,
    )
