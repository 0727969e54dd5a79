"""The line of each sample group: its rewards, advantages and lengths."""

from typing import Any

import msgspec

from services.json_lines import Count, JsonLines


class _Name(msgspec.Struct):
    group: Count


class GroupLines:
    """`groups.jsonl` by group id; the newest line counts, as a group may be done again."""

    def __init__(self, lines: JsonLines) -> None:
        self._lines = lines
        self._places: dict[int, int] = {}

    def find(self, group_id: int) -> dict[str, Any] | None:
        """The newest line of a group; None before it is scored."""
        for number, name in self._lines.follow(_Name, self._places.clear):
            self._places[name.group] = number
        place = self._places.get(group_id)
        return None if place is None else self._lines.one(place, dict)
