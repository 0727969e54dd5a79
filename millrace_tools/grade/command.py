"""The command: which answer, which grader, and how the score is shown."""

import argparse
import asyncio
import logging
import sys
from typing import TYPE_CHECKING

from rich.console import Console

from millrace_tools.command import FAILED, command, one_of, option
from millrace_tools.grade.code_job import read_code_job
from millrace_tools.grade.score_table import print_score
from services.protocol.errors import InvalidInput
from services.protocol.reward.reward_service import Score, ScoreJob, Verdict

if TYPE_CHECKING:
    from services.reward_service.scoring import Scoring


@command(
    "grade",
    option(
        "answer",
        help="a file of code, such as answer.py or answer.cpp, or of a model's answer; "
        "with --task-file the answer itself, or - for standard input",
    ),
    one_of(
        option(
            "--tests",
            metavar="FILE",
            help="JSON or YAML: a list of tests or asserts, or a grader of code; or asserts in a "
            ".py",
        ),
        option("--task-file", metavar="FILE", help="JSON lines, Parquet, or a run file"),
    ),
    option("--task", metavar="ID", help="of --task-file: the task that the answer is to"),
    option(
        "--deployment", metavar="FILE", help="the Serve file that registers graders of your own"
    ),
)
def grade(arguments: argparse.Namespace, console: Console) -> int:
    """Grade an answer in a sandbox, without a cluster; status 1 if it is not accepted.

    Prints a table in a terminal, the score as JSON elsewhere.
    """
    # Graders take a second to import; only this command needs them.
    from millrace_tools.grade.grading_config import grading_config
    from services.reward_service.scoring import Scoring

    job = _job(arguments)
    source = arguments.task_file or arguments.tests
    config = grading_config(job.grader, source=source, deployment=arguments.deployment)
    logging.getLogger("millrace.reward_service").setLevel(logging.WARNING)
    score = asyncio.run(_graded(job, Scoring(config)))
    if console.is_terminal:
        print_score(score, job.grader, console)
    else:
        from services.reward_service.http_api import score_json

        console.print(score_json(score), markup=False, highlight=False, soft_wrap=True)
    right = score.verdict is Verdict.ACCEPTED and score.passed == score.total
    return 0 if right else FAILED


def _job(arguments: argparse.Namespace) -> ScoreJob:
    if arguments.task_file is not None:
        from millrace_tools.grade.task_job import read_task_job  # imports the data's libraries

        answer = sys.stdin.read() if arguments.answer == "-" else arguments.answer
        return read_task_job(answer, arguments.task_file, arguments.task)
    if arguments.tests is None:
        fix = "Give the tests of a FILE of code, or --task-file FILE and --task ID."
        raise InvalidInput("--tests", None, fix)
    if arguments.task is not None:
        raise InvalidInput("--task", arguments.task, "It needs --task-file.")
    return read_code_job(arguments.answer, arguments.tests)


async def _graded(job: ScoreJob, scoring: "Scoring") -> Score:
    try:
        await scoring.start()
        (score,) = await scoring.score([job])
        return score
    finally:
        await scoring.tools.aclose()
