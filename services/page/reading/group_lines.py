"""The line of each sample group: its rewards, advantages and lengths."""

from typing import Any

import msgspec

from services.page.reading.json_lines import Count, JsonLines


class _Name(msgspec.Struct):
    group: Count


class GroupLines:
    """`groups.jsonl` by group id; the newest line counts, as a group may be done again."""

    def __init__(self, lines: JsonLines) -> None:
        self._lines = lines
        self._life = lines.lives
        self._read = 0
        self._places: dict[int, int] = {}

    def find(self, group_id: int) -> dict[str, Any] | None:
        """What is known of a group; None before it is scored."""
        self._look()
        place = self._places.get(group_id)
        return None if place is None else self._lines.one(place, dict)

    def _look(self) -> None:
        self._lines.look()
        if self._lines.lives != self._life:
            self._life, self._read = self._lines.lives, 0
            self._places.clear()
        for place, name in self._lines.since(self._read, _Name):
            if name is not None:
                self._places[name.group] = place
            self._read = place + 1
