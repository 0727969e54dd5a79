"""A file of JSON lines that may still grow, read by line number."""

import os
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Lock
from typing import Annotated, TypeVar

import msgspec

_CHUNK = 1 << 22
_LONGEST = 1 << 25  # of a line that is read; no writer of ours comes near
T = TypeVar("T")

Count = Annotated[int, msgspec.Meta(ge=-(2**53), le=2**53)]
"""An integer that a browser can hold."""


class JsonLines:
    """An index of where each line begins; `look` reads only bytes that are new.

    A last line without its end, as a kill leaves it, is not there. A file that was replaced or
    has shrunk is read anew. Lines that are no JSON, or not of the type that is asked for, are
    None and cost nothing else: a damaged file is still shown. So are lines above 32 MiB.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._begins = array("Q", [0])
        self._file_id: tuple[int, int] | None = None
        self._lock = Lock()
        self.lives = 0
        """Grows whenever the file was replaced or truncated: lines that were read are gone."""
        self._followed, self._followed_life = 0, 0

    def __len__(self) -> int:
        """Number of whole lines at the last look."""
        return len(self._begins) - 1

    @property
    def size(self) -> int:
        """Bytes of all whole lines at the last look."""
        return self._begins[-1]

    def look(self) -> int:
        """Take note of what was appended; returns the number of whole lines."""
        with self._lock:
            try:
                with self._path.open("rb") as file:
                    self._follow(file.fileno())
            except OSError:  # it is not there, or not yet
                self._forget(None)
            return len(self)

    def _follow(self, file: int) -> None:
        found = os.fstat(file)
        file_id = (found.st_dev, found.st_ino)
        if file_id != self._file_id or found.st_size < self.size:
            self._forget(file_id)
        at, begins = self.size, self._begins
        while chunk := os.pread(file, _CHUNK, at):
            end = chunk.find(b"\n")
            while end >= 0:
                begins.append(at + end + 1)
                end = chunk.find(b"\n", end + 1)
            at += len(chunk)

    def _forget(self, file_id: tuple[int, int] | None) -> None:
        if len(self) or self._file_id not in (None, file_id):
            self.lives += 1
        self._begins, self._file_id = array("Q", [0]), file_id

    def raw(self, start: int, stop: int) -> list[bytes]:
        """Lines `start` to `stop` (not included) as they are; fewer where there are fewer."""
        with self._lock:
            stop = min(stop, len(self))
            if start >= stop:
                return []
            begins = self._begins[start : stop + 1]
        if stop == start + 1 and begins[1] - begins[0] > _LONGEST:
            return [b""]
        try:
            with self._path.open("rb") as file:
                text = os.pread(file.fileno(), begins[-1] - begins[0], begins[0])
        except OSError:
            return []
        return text.split(b"\n")[: stop - start]

    def typed(self, start: int, stop: int, kind: type[T]) -> list[T | None]:
        """The same, decoded; fields that `kind` does not have are left out."""
        decoder = msgspec.json.Decoder(kind)
        return [_decoded(line, decoder) for line in self.raw(start, stop)]

    def since(self, number: int, kind: type[T]) -> Iterator[tuple[int, T | None]]:
        """Decoded lines from `number` to the last one of the last look, with their numbers.

        A few MiB are read at a time, whatever the length of the lines.
        """
        decoder = msgspec.json.Decoder(kind)
        while lines := self.raw(number, self._end_of_piece(number)):
            for line in lines:
                yield number, _decoded(line, decoder)
                number += 1

    def follow(
        self, kind: type[T], forget: Callable[[], None] | None = None
    ) -> Iterator[tuple[int, T]]:
        """Yield each readable line that was not yielded before, with its number; looks first.

        After the file was replaced, `forget` is called and every line comes again.
        """
        self.look()
        if self._followed_life != self.lives:
            self._followed, self._followed_life = 0, self.lives
            if forget is not None:
                forget()
        for number, line in self.since(self._followed, kind):
            self._followed = number + 1
            if line is not None:
                yield number, line

    def _end_of_piece(self, number: int) -> int:
        with self._lock:
            if number >= len(self):
                return number
            most = self._begins[number] + _CHUNK
            return max(number + 1, bisect_right(self._begins, most, lo=number) - 1)

    def one(self, number: int, kind: type[T]) -> T | None:
        """One line; None if it is missing or cannot be decoded."""
        return next(iter(self.typed(number, number + 1, kind)), None)


def _decoded(line: bytes, decoder: "msgspec.json.Decoder[T]") -> T | None:
    try:
        return decoder.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
