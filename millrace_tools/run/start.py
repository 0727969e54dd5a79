"""`millrace run`: start a run and follow it."""

import argparse

from rich.console import Console

from millrace_tools.client.runs_client import RunsClient
from millrace_tools.command import FAILED, INTERRUPTED, INVALID, SERVED, Commands, declare
from millrace_tools.deploy.dry_run import explain
from millrace_tools.deploy.run_file import read_run_file
from millrace_tools.output import print_problem
from millrace_tools.run.follow import follow_or_stop
from millrace_tools.run.run_summary import near, show_how_to_go_on, show_summary
from services.protocol.run.orchestrator import RunState, RunStatus

SHOWN_TRAJECTORIES = 1000


def add(commands: Commands) -> None:
    """Declare the command."""
    parser = declare(commands, "run", start, "start a run and follow it", SERVED)
    parser.add_argument("file", help="run file, such as examples/tiny_code/run.yaml")
    parser.add_argument("--seed", type=int, help="instead of the file's")
    parser.add_argument("--steps", type=int, help="instead of the file's")
    parser.add_argument("--resume", metavar="RUN_ID", help="resume an earlier run")
    parser.add_argument("--dry-run", action="store_true", help="explain it, and start nothing")
    parser.add_argument("--deployment", metavar="FILE", help="of --dry-run: for this Serve file")


def start(arguments: argparse.Namespace, console: Console) -> int:
    """Start a run and follow it, or explain it."""
    config = read_run_file(arguments.file, seed=arguments.seed, steps=arguments.steps)
    if arguments.dry_run:
        problems = explain(config, arguments.deployment, console)
        for problem in problems:
            print_problem(problem)
        return INVALID if problems else 0
    with RunsClient(arguments.url) as client:
        status = client.start(config, resume=arguments.resume)
        console.print(f"[bold]{status.run_id}[/] in {near(status.run_dir)}", soft_wrap=True)
        return end_of_run(client, follow_or_stop(client, status, console), console)


def end_of_run(client: RunsClient, status: RunStatus, console: Console) -> int:
    """Show how a run ended; returns the exit status."""
    show_summary(status, client.trajectories(status.run_id, SHOWN_TRAJECTORIES), console)
    if status.state == RunState.FINISHED:
        return 0
    show_how_to_go_on(status, client.url, console)
    return INTERRUPTED if status.state == RunState.STOPPED else FAILED
