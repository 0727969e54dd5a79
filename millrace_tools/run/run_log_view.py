"""What the orchestrator logged about a run, line by line for people."""

from pathlib import Path
from typing import Any

from rich.console import Console

from services.json_lines import JsonLines
from services.orchestrator.run_folder.run_log import LOG_FILE
from services.protocol.errors import InvalidInput

_FIRST = ("time", "level", "service", "event", "run")


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
            console.print(_shown(entry), markup=False, highlight=False, soft_wrap=True)


def _shown(entry: dict[str, Any]) -> str:
    fields = (f"{name}={value}" for name, value in entry.items() if name not in _FIRST)
    return " ".join([entry["time"], entry["level"], entry["event"], *fields])
