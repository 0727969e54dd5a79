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
from millrace_tools.output import print_line
from services.protocol.errors import InvalidInput
from services.protocol.reward.reward_service import Score, ScoreJob, Verdict

if TYPE_CHECKING:
    from services.reward_service.scoring import Scoring


@command(
    "grade",
    option(
        "answer",
        nargs="?",
        help="a file of code, such as answer.py or answer.cpp, or of a model's answer; "
        "with --task-file the answer itself, or - for standard input; left out, the `reference` "
        "of the grader, or of each task",
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

    Prints a table in a terminal, the score as JSON elsewhere. Reference answers show an author that
    tests, checkers and graders accept what is right.
    """
    # Graders take a second to import; only this command needs them.
    from millrace_tools.grade.grading_config import grading_config
    from services.reward_service.scoring import Scoring

    jobs = _jobs(arguments)
    source = arguments.task_file or arguments.tests
    graders = [job.grader for job in jobs]
    config = grading_config(graders, source=source, deployment=arguments.deployment)
    logging.getLogger("millrace.reward_service").setLevel(logging.WARNING)
    scores = asyncio.run(_graded(jobs, Scoring(config)))
    for job, score in zip(jobs, scores, strict=True):
        _show(score, job, console, named=len(jobs) > 1)
    return 0 if all(map(_is_right, scores)) else FAILED


def _is_right(score: Score) -> bool:
    return score.verdict is Verdict.ACCEPTED and score.passed == score.total


def _show(score: Score, job: ScoreJob, console: Console, *, named: bool) -> None:
    if console.is_terminal:
        if named:
            print_line(f"{job.job_id}:", console)
        print_score(score, job.grader, console)
    else:
        from services.reward_service.http_api import score_json

        console.print(score_json(score), markup=False, highlight=False, soft_wrap=True)


def _jobs(arguments: argparse.Namespace) -> list[ScoreJob]:
    if arguments.task_file is not None:
        from millrace_tools.grade.task_job import (  # imports the data's libraries
            read_references,
            read_task_job,
        )

        if arguments.answer is None:
            return read_references(arguments.task_file, arguments.task)
        answer = sys.stdin.read() if arguments.answer == "-" else arguments.answer
        return [read_task_job(answer, arguments.task_file, arguments.task)]
    if arguments.tests is None:
        fix = "Give the tests of a FILE of code, or --task-file FILE and --task ID."
        raise InvalidInput("--tests", None, fix)
    if arguments.task is not None:
        raise InvalidInput("--task", arguments.task, "It needs --task-file.")
    return [read_code_job(arguments.answer, arguments.tests)]


async def _graded(jobs: list[ScoreJob], scoring: "Scoring") -> list[Score]:
    try:
        await scoring.start()
        return await scoring.score(jobs)
    finally:
        await scoring.tools.aclose()
