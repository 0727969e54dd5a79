"""Ids of tasks, of which those of streamed sources are never in memory."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import overload


class StreamedIds(Sequence[str]):
    """The ids of a source's rows: its name and their numbers, counted from 1."""

    def __init__(self, name: str, count: int) -> None:
        self._name = name
        self._count = count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[str]: ...
    def __getitem__(self, place: int | slice) -> str | Sequence[str]:
        if isinstance(place, slice):
            return [self[number] for number in range(*place.indices(self._count))]
        if not 0 <= place < self._count:
            raise IndexError(place)
        return f"{self._name}:{place + 1}"

    def row(self, task_id: str) -> int | None:
        """The row of an id, counted from 0; None if it is not of these."""
        name, _, number = task_id.rpartition(":")
        if name != self._name or not number.isdigit() or not 0 < int(number) <= self._count:
            return None
        return int(number) - 1


class JoinedIds(Sequence[str]):
    """The ids of several sources, one after the other."""

    def __init__(self, parts: Sequence[Sequence[str]]) -> None:
        self._parts = parts
        self._ends = list(accumulate(map(len, parts)))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[str]: ...
    def __getitem__(self, place: int | slice) -> str | Sequence[str]:
        if isinstance(place, slice):
            return [self[number] for number in range(*place.indices(len(self)))]
        if not 0 <= place < len(self):
            raise IndexError(place)
        part = bisect_right(self._ends, place)
        return self._parts[part][place - (self._ends[part - 1] if part else 0)]
