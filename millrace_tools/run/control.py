"""`millrace stop`, `pause`, `unpause` and `checkpoint`: control a run."""

import argparse

from rich.console import Console

from millrace_tools.client.runs_client import ENDED, RunsClient
from millrace_tools.command import SERVED, Commands, declare
from millrace_tools.output import print_line
from millrace_tools.run.run_summary import show_how_to_go_on
from services.protocol.run.orchestrator import RunState, RunStatus

_PURPOSES = {
    "stop": "end a run, its progress kept",
    "pause": "admit no sample group and train no step until `millrace unpause`",
    "unpause": "end the pause of a run",
    "checkpoint": "have the trainer write a checkpoint now",
}


def add(commands: Commands) -> None:
    """Declare the commands."""
    for action, purpose in _PURPOSES.items():
        parser = declare(commands, action, stop if action == "stop" else control, purpose, SERVED)
        parser.add_argument("run_id", nargs="?", help="the active one, if left out")
        parser.set_defaults(action=action)


def control(arguments: argparse.Namespace, console: Console) -> int:
    """Pause or unpause a run, or have a checkpoint written."""
    with RunsClient(arguments.url) as client:
        run_id = arguments.run_id or client.active(arguments.action).run_id
        status = client.control(run_id, arguments.action)
    print_line(f"{status.run_id}: {status.state} at train step {status.step}", console)
    return 0


def stop(arguments: argparse.Namespace, console: Console) -> int:
    """End a run, its progress kept."""
    with RunsClient(arguments.url) as client:
        run_id = arguments.run_id
        status = client.active("stop") if run_id is None else client.status(run_id)
        if status.state in ENDED:
            console.print(f"{_ending(status)}; it was over already", soft_wrap=True)
            return 0
        status = client.control(status.run_id, "stop")
        console.print(_ending(status), soft_wrap=True)
        if status.state != RunState.FINISHED:  # which it may have been first
            show_how_to_go_on(status, client.url, console)
    return 0


def _ending(status: RunStatus) -> str:
    return f"{status.run_id}: {status.state} after {status.step} train steps"
