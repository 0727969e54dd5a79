"""The ledger of a run, read while the run writes it or after it died."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import Field

from services.protocol.strict import StrictModel

Ending = Literal["trained", "filtered", "expired", "failed", "in_flight"]
Sort = Literal["newest", "oldest", "tokens"]
LARGEST = 2**53
"""Of a whole number that is asked for."""

_SORTS: dict[Sort, str] = {
    "newest": "group_id DESC",
    "oldest": "group_id",
    "tokens": "tokens DESC, group_id DESC",
}
_BUSY_S = 2.0
_CANNOT_WRITE = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN)
_COLUMNS = (
    "group_id",
    "task_id",
    "status",
    "attempts",
    "admitted_version",
    "oldest_version",
    "train_step",
    "tokens",
    "reason",
)


class GroupQuery(StrictModel, use_attribute_docstrings=True):
    """Which sample groups are asked for."""

    status: Ending | None = None
    """How they ended; any by default."""

    step: int | None = Field(default=None, ge=0, le=LARGEST)
    """The train step that closed them; any by default."""

    task: str = Field(default="", max_length=200)
    """Part of the id of their task."""

    sort: Sort = "newest"
    """By which they are ordered."""

    offset: int = Field(default=0, ge=0, le=LARGEST)
    """Groups to leave out."""

    limit: int = Field(default=50, ge=0, le=200)
    """Most groups."""

    @property
    def where(self) -> tuple[str, list[Any]]:
        """The SQL condition and its values."""
        parts, values = ["1"], list[Any]()
        for column, value in (("status", self.status), ("train_step", self.step)):
            if value is not None:
                parts.append(f"{column} = ?")
                values.append(value)
        if self.task:
            parts.append("instr(task_id, ?) > 0")
            values.append(self.task)
        return " AND ".join(parts), values


class LedgerReading:
    """Questions to `ledger.sqlite`; each opens it anew, read-only, and sees one moment of it.

    Raises:
        sqlite3.Error: by every method: it is damaged, or no ledger.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def flow(self) -> dict[str, Any]:
        """Groups and tokens by how they ended, and where tokens went that trained nothing."""
        with self._open() as db:
            rows = db.execute(
                "SELECT status, COUNT(*), COALESCE(SUM(tokens), 0), COALESCE(SUM(kept), 0)"
                " FROM groups GROUP BY status"
            ).fetchall()
            admitted, sampled = db.execute("SELECT groups, tokens FROM account").fetchone()
            reasons = db.execute(
                "SELECT status, reason, COUNT(*), SUM(kept) FROM groups"
                " WHERE status IN ('filtered', 'expired', 'failed') GROUP BY status, reason"
            ).fetchall()
            again = dict(db.execute("SELECT cause, tokens FROM waste").fetchall())
            finished = db.execute("SELECT COUNT(*) FROM results").fetchone()[0]
        groups = dict.fromkeys(get_args(Ending), 0) | {status: count for status, count, *_ in rows}
        kept = dict.fromkeys(get_args(Ending), 0) | {status: tokens for status, *_, tokens in rows}
        accounted = sum(kept.values()) + sum(again.values())
        return {
            "groups": groups | {"admitted": admitted},
            "tokens": kept | {"admitted": sampled},
            "again": again,
            "reasons": [
                {"status": status, "reason": reason, "groups": count, "tokens": tokens}
                for status, reason, count, tokens in reasons
            ],
            "finished_in_flight": finished,
            "imbalance": abs(admitted - sum(groups.values())) + abs(sampled - accounted),
        }

    def facts(self) -> dict[str, str]:
        """What the run remembers of itself, as JSON texts."""
        with self._open() as db:
            return dict(db.execute("SELECT name, value FROM facts").fetchall())

    def groups(self, query: GroupQuery) -> tuple[int, list[dict[str, Any]]]:
        """How many groups fit, and the page of them that is asked for."""
        where, values = query.where
        with self._open() as db:
            total = db.execute(f"SELECT COUNT(*) FROM groups WHERE {where}", values).fetchone()[0]
            rows = db.execute(
                f"SELECT {', '.join(_COLUMNS)} FROM groups WHERE {where}"
                f" ORDER BY {_SORTS[query.sort]} LIMIT ? OFFSET ?",
                [*values, query.limit, query.offset],
            ).fetchall()
        return total, [dict(zip(_COLUMNS, row, strict=True)) for row in rows]

    def group(self, group_id: int) -> dict[str, Any] | None:
        """One group; None where there is none."""
        with self._open() as db:
            row = db.execute(
                f"SELECT {', '.join(_COLUMNS)} FROM groups WHERE group_id = ?", (group_id,)
            ).fetchone()
        return None if row is None else dict(zip(_COLUMNS, row, strict=True))

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        with closing(self._connected()) as db:
            # Both sides of the account change in one transaction: they are read in one as well.
            db.execute("BEGIN")
            yield db

    def _connected(self) -> sqlite3.Connection:
        """Read-only; where even that needs a file that cannot be made, as it is on the disk."""
        where = self._path.resolve().as_uri()
        db = sqlite3.connect(f"{where}?mode=ro", uri=True, timeout=_BUSY_S)
        try:
            db.execute("SELECT 1 FROM groups LIMIT 1")
        except sqlite3.OperationalError as error:
            db.close()
            if error.sqlite_errorcode & 0xFF not in _CANNOT_WRITE:  # the primary code
                raise
            # A disk that cannot be written holds no run in progress.
            db = sqlite3.connect(f"{where}?mode=ro&immutable=1", uri=True, timeout=_BUSY_S)
        return db
