"""`millrace stop`, `pause`, `unpause` and `checkpoint`: control a run."""

import argparse

from rich.console import Console

from millrace_tools.client.runs_client import ENDED, RunsClient
from millrace_tools.command import ACTIVE_RUN, SERVICES_URL, command
from millrace_tools.output import print_line
from millrace_tools.run.run_summary import show_how_to_resume
from services.protocol.run.orchestrator import RunState, RunStatus


@command("stop", SERVICES_URL, ACTIVE_RUN)
def stop(arguments: argparse.Namespace, console: Console) -> int:
    """End a run and keep its progress."""
    with RunsClient(arguments.url) as client:
        run_id = arguments.run_id
        status = client.active("stop") if run_id is None else client.status(run_id)
        if status.state in ENDED:
            console.print(f"{_ending(status)}; it was over already", soft_wrap=True)
            return 0
        status = client.control(status.run_id, "stop")
        console.print(_ending(status), soft_wrap=True)
        if status.state != RunState.FINISHED:  # which it may have been first
            show_how_to_resume(status, client.url, console)
    return 0


@command("pause", SERVICES_URL, ACTIVE_RUN)
def pause(arguments: argparse.Namespace, console: Console) -> int:
    """Admit no sample group and train no step until `millrace unpause`."""
    return _control("pause", arguments, console)


@command("unpause", SERVICES_URL, ACTIVE_RUN)
def unpause(arguments: argparse.Namespace, console: Console) -> int:
    """End the pause of a run."""
    return _control("unpause", arguments, console)


@command("checkpoint", SERVICES_URL, ACTIVE_RUN)
def checkpoint(arguments: argparse.Namespace, console: Console) -> int:
    """Have the trainer write a checkpoint now."""
    return _control("checkpoint", arguments, console)


def _control(action: str, arguments: argparse.Namespace, console: Console) -> int:
    with RunsClient(arguments.url) as client:
        run_id = arguments.run_id or client.active(action).run_id
        status = client.control(run_id, action)
    print_line(f"{status.run_id}: {status.state} at train step {status.step}", console)
    return 0


def _ending(status: RunStatus) -> str:
    return f"{status.run_id}: {status.state} after {status.step} train steps"
