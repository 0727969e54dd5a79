"""The line of each sample group: its rewards, advantages and lengths."""

from typing import Any

import msgspec

from services.page.json_lines import Count, JsonLines

_AT_ONCE = 4096


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
        return None if place is None else self._lines.one(place)

    def _look(self) -> None:
        count = self._lines.look()
        if self._lines.lives != self._life:
            self._life, self._read = self._lines.lives, 0
            self._places.clear()
        while self._read < count:
            stop = min(count, self._read + _AT_ONCE)
            for place, name in enumerate(self._lines.typed(self._read, stop, _Name), self._read):
                if name is not None:
                    self._places[name.group] = place
            self._read = stop
