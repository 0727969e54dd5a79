"""The small files of a run: what it was started with, how far it came, how it ended."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeGuard

import msgspec
import yaml

from services.ledger.ledger import LEDGER_FILE

_LONGEST_ERROR = 20_000  # characters
LARGEST = 2**53
_TAIL = 1 << 18  # bytes of metrics.jsonl: many train steps
_NAMES = (
    *("config.yaml", "metrics.jsonl", "evaluations.jsonl", "summary.json", "error.txt"),
    *(LEDGER_FILE, f"{LEDGER_FILE}-wal"),
)


class RunFiles:
    """Reads them whole at every call; what is missing or half-written is empty."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def marks(self) -> list[list[float]]:
        """A value that differs whenever one of the files, or the ledger, has changed."""
        return [mark(self._path / name) for name in _NAMES]

    def config(self) -> dict[str, Any]:
        """The run file; {} if it holds what JSON cannot say, such as half of a surrogate pair."""
        try:
            found = yaml.safe_load((self._path / "config.yaml").read_text(encoding="utf-8"))
            found = msgspec.json.decode(json.dumps(found, default=str))
        except (OSError, ValueError, TypeError, RecursionError, yaml.YAMLError):
            return {}
        return found if isinstance(found, dict) else {}

    def summary(self) -> Any:
        """Contents of `summary.json`; None before the run has ended."""
        try:
            return msgspec.json.decode((self._path / "summary.json").read_bytes())
        except (OSError, ValueError, RecursionError):
            return None

    def error(self) -> str:
        """Contents of `error.txt`; empty unless the run broke in an unexpected way."""
        try:
            with (self._path / "error.txt").open(encoding="utf-8", errors="replace") as file:
                return file.read(_LONGEST_ERROR)
        except OSError:
            return ""

    def last_step(self) -> dict[str, float]:
        """The numbers of the newest train step; {} before the first."""
        for line in reversed(self._newest_lines()):
            try:
                found = msgspec.json.decode(line)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                continue
            numbers = dict(_numbers(found)) if isinstance(found, dict) else {}
            if "step" in numbers:
                return numbers
        return {}

    def _newest_lines(self) -> list[bytes]:
        """Whole lines from the end of `metrics.jsonl`, newest last."""
        try:
            with (self._path / "metrics.jsonl").open("rb") as file:
                size = file.seek(0, 2)
                file.seek(max(0, size - _TAIL))
                lines = file.read(_TAIL).split(b"\n")[:-1]
        except OSError:
            return []
        return lines if size <= _TAIL else lines[1:]


def _numbers(line: dict[str, Any]) -> Iterator[tuple[str, float]]:
    return ((name, value) for name, value in line.items() if is_number(value))


def is_number(value: object) -> TypeGuard[float]:
    """Whether it is a number that a browser can hold."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= LARGEST


def mark(path: Path) -> list[float]:
    """Size and time of the last change of a file; zeros where it is missing or empty.

    Whoever reads a ledger makes an empty `-wal` beside it, which is no change.
    """
    try:
        found = path.stat()
    except OSError:
        return [0, 0.0]
    return [found.st_size, found.st_mtime] if found.st_size else [0, 0.0]


def state_of(step: int, steps: Any, summary: Any, error: str) -> str:
    """As far as files can tell: `unfinished` is in progress, or was killed."""
    if error:
        return "failed"
    if summary is None:
        return "unfinished"
    return "finished" if isinstance(steps, int) and step >= steps else "ended"
