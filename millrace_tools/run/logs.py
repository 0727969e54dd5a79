"""`millrace logs`: what the orchestrator logged about a run."""

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console

from millrace_tools.command import Commands, declare
from millrace_tools.output import print_line
from services.json_lines import JsonLines
from services.orchestrator.run_folder.run_log import LOG_FILE
from services.protocol.errors import InvalidInput

_LINES = 100
_FIRST = ("time", "level", "service", "event", "run")


def add(commands: Commands) -> None:
    """Declare the command."""
    parser = declare(commands, "logs", logs, "show what was logged about a run")
    parser.add_argument("run_dir", help="such as runs/tiny_code-...")
    parser.add_argument("--lines", type=int, default=_LINES, help=f"the newest ({_LINES})")


def logs(arguments: argparse.Namespace, console: Console) -> int:
    """Show the newest lines of a run's log."""
    if arguments.lines < 0:
        raise InvalidInput("--lines", arguments.lines, "Give a number from 0 up.")
    show_run_log(arguments.run_dir, console, lines=arguments.lines)
    return 0


def show_run_log(run_dir: str | Path, console: Console, *, lines: int) -> None:
    """Print the newest lines of a run directory's log, oldest first.

    Raises:
        InvalidInput: there is no log.
    """
    path = Path(run_dir) / LOG_FILE
    if not path.is_file():
        fix = f"The log cannot be read: it has no {LOG_FILE}."
        raise InvalidInput("run directory", str(run_dir), fix)
    log = JsonLines(path)
    count = log.look()
    for _, entry in log.since(max(0, count - lines), dict):
        if entry is not None:
            print_line(_shown(entry), console)


def _shown(entry: dict[str, Any]) -> str:
    fields = (f"{name}={value}" for name, value in entry.items() if name not in _FIRST)
    return " ".join([entry["time"], entry["level"], entry["event"], *fields])
