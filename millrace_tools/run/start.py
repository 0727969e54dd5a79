"""`millrace run`: start a run and follow it."""

import argparse
from contextlib import suppress

from rich.console import Console

from millrace_tools.client.application_status import application_states
from millrace_tools.client.runs_client import RunsClient
from millrace_tools.client.serve_details import serve_details
from millrace_tools.command import (
    FAILED,
    INTERRUPTED,
    INVALID,
    SERVICES_URL,
    command,
    one_of,
    option,
)
from millrace_tools.deploy.run_file import read_run_file
from millrace_tools.deploy.run_plan import explain
from millrace_tools.deploy.wait import wait_until_running
from millrace_tools.output import print_line, print_problem
from millrace_tools.run.follow import RunLost, follow_or_stop
from millrace_tools.run.run_summary import near, show_how_to_resume, show_lost, show_summary
from services.orchestrator.tasks.task_table import TaskTable
from services.protocol.errors import InvalidInput, NotReady
from services.protocol.run.orchestrator import RunConfig, RunState, RunStatus
from services.protocol.run.task import NOT_SHOWN


@command(
    "run",
    SERVICES_URL,
    option("file", help="run file, such as examples/tiny_code/run.yaml"),
    option("--seed", type=int, help="instead of the file's"),
    option("--steps", type=int, help="instead of the file's"),
    one_of(
        option("--resume", metavar="RUN_ID", help="go on with an earlier run; last: the newest"),
        option("--branch", metavar="RUN_ID", help="begin with an earlier run's newest checkpoint"),
    ),
    option(
        "--wait",
        type=float,
        default=300.0,
        help="seconds for services to be up; 0: do not look (300)",
    ),
    option("--dry-run", action="store_true", help="explain it, and start nothing"),
    option("--deployment", metavar="FILE", help="of --dry-run: for this Serve file"),
)
def run(arguments: argparse.Namespace, console: Console) -> int:
    """Start a run and follow it."""
    config = read_run_file(arguments.file, seed=arguments.seed, steps=arguments.steps)
    if arguments.dry_run:
        problems = explain(config, arguments.deployment, console)
        for problem in problems:
            print_problem(problem)
        return INVALID if problems else 0
    with RunsClient(arguments.url) as client:
        if arguments.wait > 0:
            _wait(client, console, timeout_s=arguments.wait)
        status = _start(client, config, arguments)
        console.print(f"[bold]{status.run_id}[/] in {near(status.run_dir)}", soft_wrap=True)
        try:
            status = follow_or_stop(client, status, console)
        except RunLost as why:
            show_lost(status, why, client.url, console)
            return FAILED
        show_summary(status, client.trajectories(status.run_id), console)
        if status.state == RunState.FINISHED:
            return 0
        show_how_to_resume(status, client.url, console)
        return INTERRUPTED if status.state == RunState.STOPPED else FAILED


def _wait(client: RunsClient, console: Console, *, timeout_s: float) -> None:
    """Wait for services that are not as they were deployed last; nothing is said if all are.

    Raises:
        InvalidInput: nothing listens at the URL, or something else than the services.
        NotReady: see `wait_until_running`.
    """
    url = client.url
    if all(state.status == "RUNNING" for state in application_states(url)):
        return
    if serve_details(url) is None:
        with suppress(NotReady):  # they are starting
            client.runs()
    print_line(f"Waiting up to {timeout_s:g} s for the services at {url}:", console)
    wait_until_running(lambda: application_states(url), console, timeout_s=timeout_s)


def _start(client: RunsClient, config: RunConfig, arguments: argparse.Namespace) -> RunStatus:
    """Start the run; a refusal of its tasks shows the value, if this machine has the file.

    The orchestrator shows nothing that files hold: a client may name any file.
    """
    try:
        return client.start(config, resume=arguments.resume, branch=arguments.branch)
    except InvalidInput as refused:
        if refused.value == NOT_SHOWN:
            _read_tasks(config, refused.field)
        raise


def _read_tasks(config: RunConfig, field: str) -> None:
    """Read the task files here.

    Raises:
        InvalidInput: they have a problem with this field.
    """
    try:
        TaskTable(config)
    except InvalidInput as problem:
        if problem.field == field:
            raise problem from None
