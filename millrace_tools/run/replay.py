"""`millrace replay`: decide a run's schedule again, and compare with its record."""

import argparse

from rich.console import Console

from millrace_tools.command import FAILED, RUN_DIR, command
from millrace_tools.output import print_line
from services.orchestrator.core import replay as recorded
from services.orchestrator.run_folder.run_directory import RunDirectory


@command("replay", RUN_DIR)
def replay(arguments: argparse.Namespace, console: Console) -> int:
    """Decide again what a run's schedule decided.

    Returns 1 if a decision differs.

    Raises:
        InvalidInput: the directory has no decisions that can be read.
    """
    played = recorded.replay(RunDirectory(arguments.run_dir).decisions)
    lives = played.decisions.pop("begin", 0)
    counts = ", ".join(f"{count} {name}" for name, count in played.decisions.most_common())
    print_line(f"{played.decisions.total()} decisions of {lives} starts: {counts}", console)
    if played.full:
        print_line("The record is full: later decisions were not recorded.", console)
    if played.difference is not None:
        print_line(f"They differ from here on, {played.difference}", console)
        return FAILED
    print_line("All come out the same.", console)
    return 0
