"""Scores remembered and shared: a sample group holds many identical answers."""

import asyncio
from collections.abc import Awaitable, Callable

from cachetools import LRUCache

from services.protocol.reward.reward_service import Score, Verdict

REMEMBERED = frozenset(
    {
        Verdict.ACCEPTED,
        Verdict.WRONG_ANSWER,
        Verdict.COMPILE_ERROR,
        Verdict.RUNTIME_ERROR,
        Verdict.NO_CODE,
    }
)
"""Verdicts that a second run would repeat. Those at a limit may depend on the machine."""


class VerdictCache:
    """Least recently used grades by key, and one computation at a time for each key."""

    def __init__(self, entries: int) -> None:
        self._grades: LRUCache[str, Score] = LRUCache(entries)
        self._in_flight: dict[str, asyncio.Future[Score | None]] = {}

    def __len__(self) -> int:
        return len(self._grades)

    async def grade(self, key: str, compute: Callable[[], Awaitable[Score]]) -> tuple[Score, bool]:
        """The score, and whether another call computed it.

        A call that waits for another's computation takes its place if that one is cancelled or
        raises. An exception of `compute` reaches its own caller only.
        """
        while True:
            if key in self._grades:
                return self._grades[key], True
            flight = self._in_flight.get(key)
            if flight is None:
                return await self._compute(key, compute), False
            # The shield keeps a cancelled waiter from cancelling it for the others.
            shared = await asyncio.shield(flight)
            if shared is not None:
                return shared, True

    async def _compute(self, key: str, compute: Callable[[], Awaitable[Score]]) -> Score:
        flight: asyncio.Future[Score | None] = asyncio.get_running_loop().create_future()
        self._in_flight[key] = flight
        grade: Score | None = None
        try:
            grade = await compute()
        finally:
            del self._in_flight[key]
            flight.set_result(grade)
        if grade.verdict in REMEMBERED:
            self._grades[key] = grade
        return grade
