"""What the orchestrator logged about a run, line by line for people."""

import json
from pathlib import Path
from typing import Any

from rich.console import Console

from services.orchestrator.run_folder.run_log import LOG_FILE
from services.protocol.errors import InvalidInput

_FIRST = ("time", "level", "service", "event", "run")


def show_run_log(run_dir: str | Path, console: Console, *, lines: int) -> None:
    """Print the newest lines of a run directory's log, oldest first.

    Raises:
        InvalidInput: there is no log.
    """
    path = Path(run_dir) / LOG_FILE
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        fix = f"The log cannot be read: {error.strerror}."
        raise InvalidInput("run directory", str(run_dir), fix) from None
    whole = text.split("\n")[:-1]  # a last line cut short by a kill is left out
    for line in whole[-lines:] if lines else []:
        console.print(_shown(json.loads(line)), markup=False, highlight=False, soft_wrap=True)


def _shown(entry: dict[str, Any]) -> str:
    fields = (f"{name}={value}" for name, value in entry.items() if name not in _FIRST)
    return " ".join([entry["time"], entry["level"], entry["event"], *fields])
