"""Log lines of a run: searched, and its warnings by event."""

import json
from array import array
from typing import Any, Literal

import msgspec
from pydantic import Field

from services.json_lines import JsonLines
from services.ledger.sample_group import LARGEST
from services.protocol.strict import StrictModel

_BLOCK = 2000  # lines that are searched at a time
_INFO = "info"


class _Head(msgspec.Struct):
    event: str
    time: str = ""
    level: str = _INFO


class LogQuery(StrictModel, use_attribute_docstrings=True):
    """Which log lines are asked for, newest first."""

    text: str = Field(default="", max_length=200)
    """Words, all of which a line has, in any case of letters."""

    level: Literal["", "warning"] = ""
    """`warning`: only warnings and errors."""

    event: str = Field(default="", max_length=100)
    """Only this event."""

    offset: int = Field(default=0, ge=0, le=LARGEST)
    """Lines to leave out."""

    limit: int = Field(default=100, ge=0, le=500)
    """Most lines."""


class LogLines:
    """Both files of a run's log, oldest first; grows with them.

    Args:
        older: the file that was full.
        newer: the file that grows.
    """

    def __init__(self, older: JsonLines, newer: JsonLines) -> None:
        self._files = (older, newer)
        self._forget()

    def _forget(self) -> None:
        self._lives = [file.lives for file in self._files]
        self._read = [0, 0]
        self._file, self._number = array("q"), array("q")
        self._is_bad, self._event = array("b"), array("q")
        self._events: dict[str, int] = {}
        self._warnings: dict[str, dict[str, Any]] = {}

    def look(self) -> int:
        """Read what was appended; returns the number of lines."""
        for file in self._files:
            file.look()
        if [file.lives for file in self._files] != self._lives:
            self._forget()
        for which, file in enumerate(self._files):
            for number, head in file.since(self._read[which], _Head):
                self._read[which] = number + 1
                if head is not None:
                    self._add(which, number, head)
        return len(self._number)

    def _add(self, which: int, number: int, head: _Head) -> None:
        is_bad = head.level != _INFO
        self._file.append(which)
        self._number.append(number)
        self._is_bad.append(is_bad)
        self._event.append(self._events.setdefault(head.event, len(self._events)))
        if is_bad:
            seen = self._warnings.setdefault(
                head.event, {"event": head.event, "count": 0, "first": head.time}
            )
            place = len(self._number) - 1
            seen |= {
                "level": head.level,
                "count": seen["count"] + 1,
                "newest": head.time,
                "place": place,
            }

    def find(self, query: LogQuery) -> dict[str, Any]:
        """A page of lines, and how many there are in all."""
        count = self.look()
        event = self._events.get(query.event, -1)
        places = [
            place
            for place in range(count - 1, -1, -1)
            if (not query.level or self._is_bad[place])
            and (not query.event or self._event[place] == event)
        ]
        words = [json.dumps(word)[1:-1].encode().lower() for word in query.text.split()]
        if words:
            places = self._with(places, words)
        page = places[query.offset : query.offset + query.limit]
        lines = (self._line(place) for place in page)
        events = sorted(self._events)
        shown = [line for line in lines if line is not None]
        return {"total": len(places), "events": events, "lines": shown}

    def _with(self, places: list[int], words: list[bytes]) -> list[int]:
        """Those of some places, newest first, whose lines have all words."""
        found, block, lines = [], (-1, -1), list[bytes]()
        for place in places:
            which, number = self._file[place], self._number[place]
            if block != (which, number // _BLOCK):
                block = which, number // _BLOCK
                start = block[1] * _BLOCK
                lines = self._files[which].raw(start, start + _BLOCK)
            at = number % _BLOCK
            text = lines[at].lower() if at < len(lines) else b""
            if all(word in text for word in words):
                found.append(place)
        return found

    def _line(self, place: int) -> dict[str, Any] | None:
        return self._files[self._file[place]].one(self._number[place], dict)

    def warnings(self) -> list[dict[str, Any]]:
        """Warnings and errors by event, the newest first, each with its newest line."""
        self.look()
        found = sorted(self._warnings.values(), key=lambda one: one["place"], reverse=True)
        return [
            {name: value for name, value in one.items() if name != "place"}
            | {"line": self._line(one["place"])}
            for one in found
        ]
