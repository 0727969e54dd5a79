"""A file of JSON lines in the run directory; a full disk costs lines, never the run."""

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any

import msgspec

from services.disk import replace_file
from services.json_lines import JsonLines
from services.observability.log import Log
from services.observability.metrics import RunMetrics

_MOST_WAITING = 64 * 1024
_FLUSH_S = 1.0
_CHUNK = 64 * 1024
_log = Log("orchestrator")


class Journal:
    """Appends lines; lines that cannot be written are dropped, counted by cause, and logged once.

    A line that a kill or a full disk cut short is taken off, so that no other is spoilt by it.
    Lines wait for a second, or until there are many, or until `flush`.

    Args:
        path: of the file, in the run directory.
        max_bytes: from then on nothing more is written; None: as much as comes.
        turns: a full file becomes `NAME.1.jsonl` instead, so that the newest lines stay.
        last: a line that ends a file from whose middle nothing may be missing: after the first
            loss only this is written.
    """

    def __init__(
        self,
        path: Path,
        *,
        max_bytes: int | None = None,
        turns: bool = False,
        last: list[Any] | None = None,
    ) -> None:
        self._path = path
        self._most, self._turns = max_bytes, turns
        self._last = None if last is None else _line(last)
        self._file: FileIO | None = None
        self._size = path.stat().st_size if path.exists() else 0
        self._waiting: list[bytes] = []
        self._waiting_bytes = 0
        self._flushed = time.monotonic()
        self._full = self._losing = self._ended = False
        self.dropped = 0
        """Lines that are not in the file."""

    def add(self, record: Any) -> None:
        """Append a line to the buffer."""
        line = _line(record)
        size = self._size + self._waiting_bytes + len(line)
        if self._most is not None and size > self._most and not self._full:
            self.flush()
            if self._turns:
                self._turn()
            else:
                self._full = True
        if self._full or (self._last is not None and self.dropped):
            self._drop(1, "bound" if self._full else "disk")
            self._end()
            return
        self._waiting.append(line)
        self._waiting_bytes += len(line)
        if self._waiting_bytes > _MOST_WAITING or time.monotonic() > self._flushed + _FLUSH_S:
            self.flush()

    def write(self, *records: Any) -> None:
        """Append lines now."""
        for record in records:
            self.add(record)
        self.flush()

    def flush(self) -> None:
        """Write buffered lines to the file."""
        block, self._waiting, self._waiting_bytes = self._waiting, [], 0
        self._flushed = time.monotonic()
        if not block:
            return
        arrived, problem = self._append(b"".join(block))
        if problem is None:
            self._losing = False
        else:
            self._drop(len(block) - arrived, "disk", problem)

    def close(self) -> None:
        """Write buffered lines and close the file."""
        self.flush()
        if self.dropped:
            self._end()
        self._let_go()

    def lines(self, newest: int | None = None) -> list[Any]:
        """The newest whole lines of the file, or all; one cut short by a kill is left out."""
        lines = JsonLines(self._path)
        count = lines.look()
        first = 0 if newest is None else max(0, count - newest)
        return [json.loads(line) for line in lines.raw(first, count)]

    def keep(self, wanted: Callable[[Any], bool]) -> bool:
        """Remove unwanted lines; returns whether there were any."""
        self.flush()
        self._let_go()
        whole = JsonLines(self._path)
        lines = [line + b"\n" for line in whole.raw(0, whole.look())]
        kept = [line for line in lines if wanted(json.loads(line))]
        if len(kept) == len(lines):
            return False
        try:
            replace_file(self._path, b"".join(kept))
        except OSError as error:  # no space beside it: cut the file off at the first of them
            before = next(i for i, line in enumerate(lines) if not wanted(json.loads(line)))
            os.truncate(self._path, sum(map(len, lines[:before])))
            self._drop(len(kept) - before, "disk", error)
        self._size = self._path.stat().st_size
        return True

    def _open(self) -> FileIO:
        """The file at the end of its last whole line.

        Raises:
            OSError: it cannot be opened.
        """
        if self._file is None:
            self._file = FileIO(self._path, "a+")
            self._size = _end_of_lines(self._file)
            self._file.truncate(self._size)
        return self._file

    def _append(self, block: bytes) -> tuple[int, OSError | None]:
        """Write a block; returns how many whole lines arrived, and why not all."""
        done = 0
        try:
            file = self._open()
            while done < len(block):
                done += file.write(block[done:])
        except OSError as error:
            whole = block.rfind(b"\n", 0, done) + 1
            self._let_go()  # opening it again removes the line that was cut short
            return block.count(b"\n", 0, whole), error
        self._size += len(block)
        return block.count(b"\n"), None

    def _end(self) -> None:
        """Write that lines are missing from here on, once there is space for it."""
        if self._last is not None and not self._ended:
            _, problem = self._append(self._last)
            self._ended = problem is None

    def _turn(self) -> None:
        self._let_go()
        with suppress(OSError):  # then it grows for now
            self._path.replace(self._path.with_name(f"{self._path.stem}.1{self._path.suffix}"))
            self._size = 0

    def _let_go(self) -> None:
        if self._file is not None:
            with suppress(OSError):  # the lines before are written
                self._file.close()
            self._file = None

    def _drop(self, lines: int, cause: str, error: OSError | None = None) -> None:
        run, name = self._path.parent.name, self._path.name
        if lines and not self._losing:
            why = str(error) if error is not None else f"{name} has {self._size} bytes"
            _log.warning("records_dropped", run=run, file=name, cause=cause, why=why)
        self._losing = True
        self.dropped += lines
        RunMetrics.dropped.inc(lines, {"run": run, "file": name, "cause": cause})


def _line(record: Any) -> bytes:
    try:
        text = json.dumps(record, allow_nan=False)
    except ValueError:  # JSON has no NaN and no infinity; msgspec writes null
        text = json.dumps(msgspec.json.decode(msgspec.json.encode(record)))
    return text.encode() + b"\n"


def _end_of_lines(file: FileIO) -> int:
    """Offset of the end of the last whole line."""
    end = file.seek(0, os.SEEK_END)
    while end > 0:
        begin = max(0, end - _CHUNK)
        found = os.pread(file.fileno(), end - begin, begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        end = begin
    return 0
