"""`millrace logs`: log entries of the orchestrator about a run."""

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console

from millrace_tools.command import RUN_DIR, command, option
from millrace_tools.output import print_line
from services.json_lines import JsonLines
from services.orchestrator.run_folder.run_directory import LOG_FILE
from services.protocol.errors import InvalidInput

_LINES = 100
_FIRST = ("time", "level", "service", "event", "run")


@command("logs", RUN_DIR, option("--lines", type=int, default=_LINES, help=f"newest ({_LINES})"))
def logs(arguments: argparse.Namespace, console: Console) -> int:
    """Show the newest log entries of a run, oldest first.

    Raises:
        InvalidInput: there is no log.
    """
    if arguments.lines < 0:
        raise InvalidInput("--lines", arguments.lines, "Give a number from 0 up.")
    path = Path(arguments.run_dir) / LOG_FILE
    if not path.is_file():
        fix = f"The log cannot be read: it has no {LOG_FILE}."
        raise InvalidInput("run directory", arguments.run_dir, fix)
    log = JsonLines(path)
    count = log.look()
    for _, entry in log.since(max(0, count - arguments.lines), dict):
        if entry is not None:
            print_line(_shown(entry), console)
    return 0


def _shown(entry: dict[str, Any]) -> str:
    fields = (f"{name}={value}" for name, value in entry.items() if name not in _FIRST)
    return " ".join([entry["time"], entry["level"], entry["event"], *fields])
