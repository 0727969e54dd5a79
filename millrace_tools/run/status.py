"""`millrace status`: all runs in a line each, or one of them in full."""

import argparse

from rich.console import Console

from millrace_tools.client.runs_client import RunsClient
from millrace_tools.command import SERVICES_URL, command, option
from millrace_tools.output import print_items, print_line, shown
from millrace_tools.run.run_view import evaluation_text, failures_text, idle_text, ledger_text
from services.protocol.run.orchestrator import RunStatus

_COLUMNS = {
    "run": lambda run: run.run_id,
    "state": lambda run: run.state,
    "step": lambda run: f"{run.step}/{run.steps}",
    "reward": lambda run: run.reward,
    "held-out": lambda run: run.heldout_pass_rate,
    "seconds": lambda run: f"{run.elapsed_s:.0f}",
}


@command("status", SERVICES_URL, option("run_id", nargs="?", help="without it, all are listed"))
def status(arguments: argparse.Namespace, console: Console) -> int:
    """Show all runs, or one."""
    with RunsClient(arguments.url) as client:
        if arguments.run_id is not None:
            show_run(client.status(arguments.run_id), console)
        elif runs := client.runs():
            print_items(runs, _COLUMNS, console)
        else:
            console.print("No runs yet.")
    return 0


def show_run(run: RunStatus, console: Console) -> None:
    """Print the whole status of a run but its summary."""
    sides = ((side, idle_text(causes)) for side, causes in run.idle.items())
    texts = {
        "ledger": ledger_text(run.ledger),
        "idle": "; ".join(f"{side} {text}" for side, text in sides if text),
        "failures": failures_text(run.failures),
    }
    for name, value in run.model_dump(mode="json", exclude={"summary"}).items():
        if name == "evaluations":
            for one in run.evaluations:
                line = f"{one.name:18} {evaluation_text(one)}  after step {one.step}"
                print_line(line, console)
        else:
            print_line(f"{name:18} {shown(texts.get(name, value))}", console)
