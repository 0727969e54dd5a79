"""Notes that people write about a run: the only thing that the page writes."""

import json
import os
import time
from pathlib import Path
from typing import Any

import msgspec
from pydantic import Field

from services.json_lines import JsonLines
from services.protocol.errors import InvalidInput
from services.protocol.strict import StrictModel

NOTES_FILE = "notes.jsonl"
_MOST_BYTES = 4 * 1024 * 1024
_MOST_SHOWN = 500


class NewNote(StrictModel):
    """A note as a browser sends it.

    Attributes:
        text: for people to read.
        author: who writes, as they call themselves; the name of an API key counts more.
    """

    text: str = Field(min_length=1, max_length=4000)
    author: str = Field(default="", max_length=80)


class Note(msgspec.Struct):
    """A line of `notes.jsonl`: seconds since 1970, and the run's train step then."""

    at: float
    step: int
    author: str
    text: str


class RunNotes:
    """The notes of a run, in its directory."""

    def __init__(self, run: Path) -> None:
        self._path = run / NOTES_FILE

    def all(self) -> list[dict[str, Any]]:
        """The newest notes, newest first."""
        lines = JsonLines(self._path)
        first = max(0, lines.look() - _MOST_SHOWN)
        found = [note for _, note in lines.since(first, Note) if note is not None]
        return [msgspec.structs.asdict(note) for note in reversed(found)]

    def add(self, note: NewNote, *, step: int, author: str) -> None:
        """Append a note.

        Raises:
            InvalidInput: the notes are as many as they may be, or cannot be written.
        """
        record = {"at": round(time.time(), 1), "step": step, "author": author, "text": note.text}
        line = json.dumps(record).encode() + b"\n"
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
        try:
            file = os.open(self._path, flags, 0o644)
            try:
                size = os.fstat(file).st_size
                if size + len(line) > _MOST_BYTES:
                    fix = f"The notes of a run are {_MOST_BYTES >> 20} MiB at most."
                    raise InvalidInput("text", note.text[:80], fix)
                if size and os.pread(file, 1, size - 1) != b"\n":  # cut short by a full disk
                    line = b"\n" + line
                os.write(file, line)
            finally:
                os.close(file)
        except OSError as error:
            fix = f"The page cannot write it: {error.strerror}."
            raise InvalidInput(NOTES_FILE, str(self._path), fix) from None
