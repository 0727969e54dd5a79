"""`millrace status`: all runs in a line each, or one of them in full."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from millrace_tools.client.runs_client import RunsClient
from millrace_tools.command import SERVICES_URL, command, option
from millrace_tools.output import print_items, print_line, shown
from millrace_tools.run.run_on_disk import RunOnDisk, readable, runs_below
from millrace_tools.run.run_summary import near, resume_command
from millrace_tools.run.run_view import (
    evaluation_text,
    failures_text,
    idle_text,
    ledger_text,
    version_text,
)
from services.protocol.errors import InvalidInput, NotReady
from services.protocol.run.orchestrator import RunStatus

_COLUMNS = {
    "run": lambda run: run.run_id,
    "state": lambda run: run.state,
    "step": lambda run: f"{run.step}/{run.steps}",
    "reward": lambda run: run.reward,
    "held-out": lambda run: run.heldout_pass_rate,
    "seconds": lambda run: f"{run.elapsed_s:.0f}",
}
_MOST_ON_DISK = 20


@command(
    "status",
    SERVICES_URL,
    option("--runs", metavar="FOLDER", default="runs", help="with runs on disk (runs)"),
    option("run_id", nargs="?", help="without it, all are listed"),
)
def status(arguments: argparse.Namespace, console: Console) -> int:
    """Show all runs, or one.

    Runs on disk that the orchestrator does not know are shown as their files have them, also where
    nothing answers.

    Raises:
        InvalidInput: there is no such run, or nothing answers.
        NotReady: the orchestrator does not answer properly.
    """
    with RunsClient(arguments.url) as client:
        roots, known = [Path(arguments.runs)], list[RunStatus]()
        away: InvalidInput | NotReady | None = None
        try:
            known = client.runs()
        except (InvalidInput, NotReady) as problem:
            away = problem
        roots += [Path(run.run_dir).parent for run in known]
        if arguments.run_id is not None:
            _show_one(arguments.run_id, client, roots, console)
            return 0
    if known:
        print_items(known, _COLUMNS, console)
    ids = {run.run_id for run in known}
    others = [folder for folder in runs_below(roots) if folder.name not in ids]
    if others:
        _show_on_disk(others, client.url, console)
    elif not known and away is None:
        console.print("No runs yet.")
    if away is not None:
        raise away
    return 0


def _show_one(run_id: str, client: RunsClient, roots: Sequence[Path], console: Console) -> None:
    try:
        show_run(client.status(run_id), console)
    except (InvalidInput, NotReady):
        found = (folder for folder in runs_below(roots) if folder.name == run_id)
        run = next(readable(found), None)
        if run is None:
            raise
        for name, value in vars(run).items():
            text = ledger_text(value) if name == "ledger" else shown(value)
            print_line(f"{name:18} {text}", console)
        print_line(f"On disk only. To go on with it:\n  {_resumes(run, client.url)}", console)


def _show_on_disk(folders: Sequence[Path], url: str, console: Console) -> None:
    """Print the newest, and how to go on with the newest that is not finished."""
    newest = folders[-_MOST_ON_DISK:]
    more = f", the newest {len(newest)} of {len(folders)}" if len(newest) < len(folders) else ""
    roots = ", ".join(sorted({near(folder.parent) for folder in newest}))
    print_line(f"On disk in {roots}{more}:", console)
    runs = list(readable(newest))
    print_items(runs, _COLUMNS, console)
    for run in [run for run in runs if run.state != "finished"][-1:]:
        print_line(f"To go on with {run.run_id}:\n  {_resumes(run, url)}", console)


def _resumes(run: RunOnDisk, url: str) -> str:
    return resume_command(run.run_dir, run.run_id, url)


def show_run(run: RunStatus, console: Console) -> None:
    """Print the whole status of a run but its summary."""
    sides = ((side, idle_text(causes)) for side, causes in run.idle.items())
    texts = {
        "ledger": ledger_text(run.ledger),
        "idle": "; ".join(f"{side} {text}" for side, text in sides if text),
        "failures": failures_text(run.failures),
        "findings": "; ".join(f"{one.text}. {one.advice}" for one in run.findings),
        "policy_version": version_text(run.policy_version, run.step),
    }
    for name, value in run.model_dump(mode="json", exclude={"summary"}).items():
        if name == "evaluations":
            for one in run.evaluations:
                line = f"{one.name:18} {evaluation_text(one)}  after step {one.step}"
                print_line(line, console)
        else:
            print_line(f"{name:18} {shown(texts.get(name, value))}", console)
