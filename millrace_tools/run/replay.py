"""`millrace replay`: decide a run's schedule again, and compare with its record."""

import argparse

from rich.console import Console

from millrace_tools.command import FAILED, Commands, declare
from millrace_tools.output import print_line
from services.orchestrator.core import replay as recorded
from services.orchestrator.run_folder.run_directory import RunDirectory


def add(commands: Commands) -> None:
    """Declare the command."""
    parser = declare(commands, "replay", replay, "decide again what a run's schedule decided")
    parser.add_argument("run_dir", help="such as runs/tiny_code-...")


def replay(arguments: argparse.Namespace, console: Console) -> int:
    """Decide a run's schedule again; status 1 if a decision differs."""
    return 0 if show_replay(arguments.run_dir, console) else FAILED


def show_replay(run_dir: str, console: Console) -> bool:
    """Print what was decided again; returns whether all of it came out the same.

    Raises:
        InvalidInput: the directory has no decisions that can be read.
    """
    played = recorded.replay(RunDirectory(run_dir).decisions)
    lives = played.decisions.pop("begin", 0)
    counts = ", ".join(f"{count} {name}" for name, count in played.decisions.most_common())
    lines = [f"{played.decisions.total()} decisions of {lives} starts: {counts}"]
    if played.full:
        lines.append("The record is full: what came later was not written down.")
    lines.append(
        "All come out the same."
        if played.difference is None
        else f"They differ from here on, {played.difference}"
    )
    for line in lines:
        print_line(line, console)
    return played.difference is None
