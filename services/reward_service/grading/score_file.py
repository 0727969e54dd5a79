"""Scores of judges in a file, so that no answer is paid for twice."""

import asyncio
import sqlite3
import time
from pathlib import Path

from services.observability.log import Log

_BUSY_S = 1.0
_LEFT_ALONE_S = 60.0
"""After a failure, before the file is used again."""
_log = Log("reward_service")


class ScoreFile:
    """Scores by digest, of which the oldest go first; processes of one machine may share it.

    It is only a cache: without a usable disk every score is asked for again.

    Args:
        folder: in which it lies.
        most: scores that are kept, about 150 bytes each.
    """

    def __init__(self, folder: str, most: int) -> None:
        self._path, self._most = Path(folder) / "judge-scores.sqlite", most
        self._file: sqlite3.Connection | None = None
        self._left_alone_until = 0.0
        self._turn = asyncio.Lock()

    async def get(self, digest: str) -> float | None:
        """The score, None if it is not kept."""
        found = await self._in_thread("SELECT score FROM scores WHERE digest = ?", digest)
        return found[0][0] if found else None

    async def put(self, digest: str, score: float) -> None:
        """Keep a score, and drop the oldest ones above the bound."""
        await self._in_thread(
            "INSERT OR REPLACE INTO scores (digest, score) VALUES (?, ?)", digest, score
        )
        await self._in_thread(
            "DELETE FROM scores WHERE place <= (SELECT max(place) FROM scores) - ?", self._most
        )

    async def _in_thread(self, order: str, *values: object) -> list[tuple[float]]:
        async with self._turn:
            return await asyncio.to_thread(self._do, order, values)

    def _do(self, order: str, values: tuple[object, ...]) -> list[tuple[float]]:
        if time.monotonic() < self._left_alone_until:
            return []
        try:
            if self._file is None:
                self._file = self._opened()
            return self._file.execute(order, values).fetchall()
        except (sqlite3.Error, OSError) as error:
            _log.warning("judge_scores_unusable", file=str(self._path), error=str(error))
            self._left_alone_until = time.monotonic() + _LEFT_ALONE_S
            return []

    def _opened(self) -> sqlite3.Connection:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = sqlite3.connect(
            self._path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
        )
        file.execute("PRAGMA journal_mode = WAL")
        file.execute("PRAGMA synchronous = NORMAL")
        file.execute(
            "CREATE TABLE IF NOT EXISTS scores (place INTEGER PRIMARY KEY AUTOINCREMENT, "
            "digest TEXT UNIQUE NOT NULL, score REAL NOT NULL)"
        )
        return file
