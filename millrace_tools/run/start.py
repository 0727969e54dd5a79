"""`millrace run`: start a run and follow it."""

import argparse

from rich.console import Console

from millrace_tools.client.runs_client import RunsClient
from millrace_tools.command import FAILED, INTERRUPTED, INVALID, SERVICES_URL, command, option
from millrace_tools.deploy.run_file import read_run_file
from millrace_tools.deploy.run_plan import explain
from millrace_tools.output import print_problem
from millrace_tools.run.follow import follow_or_stop
from millrace_tools.run.run_summary import near, show_how_to_resume, show_summary
from services.protocol.run.orchestrator import RunState


@command(
    "run",
    SERVICES_URL,
    option("file", help="run file, such as examples/tiny_code/run.yaml"),
    option("--seed", type=int, help="instead of the file's"),
    option("--steps", type=int, help="instead of the file's"),
    option("--resume", metavar="RUN_ID", help="resume an earlier run"),
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
        status = client.start(config, resume=arguments.resume)
        console.print(f"[bold]{status.run_id}[/] in {near(status.run_dir)}", soft_wrap=True)
        status = follow_or_stop(client, status, console)
        show_summary(status, client.trajectories(status.run_id), console)
        if status.state == RunState.FINISHED:
            return 0
        show_how_to_resume(status, client.url, console)
        return INTERRUPTED if status.state == RunState.STOPPED else FAILED
