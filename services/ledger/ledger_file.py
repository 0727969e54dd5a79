"""Connections to a ledger's SQLite file."""

import sqlite3
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from services.disk import has_space

_Values = Sequence[Any] | Mapping[str, Any]
_Statement = tuple[str, _Values]
_PRIMARY = 0xFF
"""Of SQLite's extended error codes, the bits that say which kind it is."""
_BUSY_S = 2.0
_CANNOT_WRITE = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN)


class LedgerFile:
    """One connection, which goes on in memory while the disk is full; use it from one thread.

    SQLite rolls a transaction back that finds no space. It is then done in a copy of the
    database in memory, as are those after it, and all are kept as statements. `catch_up` writes
    them to the file, in order. A kill meanwhile leaves the file as it was before the first of
    them, which is what a kill at that moment would have left.

    Attributes:
        fell_behind: is called when the file takes no more transactions.
    """

    def __init__(self, path: str | Path) -> None:
        self._folder = Path(path).parent
        self._file = self.connection = sqlite3.connect(path, isolation_level=None)
        self.fell_behind: Callable[[], None] = lambda: None
        self._now: list[_Statement] | None = None
        self._late: deque[list[_Statement]] = deque()
        self._file.execute("PRAGMA journal_mode = WAL")
        # In WAL mode NORMAL survives the death of the process; only a power cut can undo
        # the last transactions, and then as a whole.
        self._file.execute("PRAGMA synchronous = NORMAL")
        # Nothing of a transaction is written before its end, here or in a temporary file.
        self._file.execute("PRAGMA cache_spill = OFF")
        self._file.execute("PRAGMA temp_store = MEMORY")

    @property
    def behind(self) -> bool:
        """Whether the file lacks the newest transactions: a kill would lose them."""
        return self.connection is not self._file

    def execute(self, statement: str, values: _Values = ()) -> sqlite3.Cursor:
        """Execute a query, or a change within a `transaction`."""
        if self._now is not None:
            self._now.append((statement, values))
        try:
            return self.connection.execute(statement, values)
        except sqlite3.OperationalError as error:
            if self._now is None or self.behind or not self._is_disk_full(error):
                raise
            return self._go_on_in_memory(self._now)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """A transaction: all statements within take effect, or none."""
        self._now = []
        try:
            self.execute("BEGIN IMMEDIATE")
            yield
            self.execute("COMMIT")
            if self.behind:
                self._late.append(self._now)
        except BaseException:
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK")
            raise
        finally:
            self._now = None

    def catch_up(self) -> bool:
        """Write to the file what it lacks; False while its disk is full."""
        while self._late:
            try:
                for statement, values in self._late[0]:
                    self._file.execute(statement, values)
            except sqlite3.OperationalError as error:
                self._undo()
                if not self._is_disk_full(error):
                    raise
                return False
            self._late.popleft()
        if self.behind:
            self.connection.close()
            self.connection = self._file
        return True

    def close(self) -> None:
        """Close the file; what it lacks is lost."""
        self._file.close()
        self.connection.close()

    def _go_on_in_memory(self, begun: list[_Statement]) -> sqlite3.Cursor:
        """Repeat the transaction in progress in memory."""
        self._undo()
        memory = sqlite3.connect(":memory:", isolation_level=None)
        self._file.backup(memory)
        self.connection = memory
        self.fell_behind()
        return [memory.execute(statement, values) for statement, values in begun][-1]

    def _undo(self) -> None:
        if self._file.in_transaction:  # SQLite has mostly done so by itself
            self._file.execute("ROLLBACK")

    def _is_disk_full(self, error: sqlite3.OperationalError) -> bool:
        kind = error.sqlite_errorcode & _PRIMARY
        # A quota that is used up is an I/O error to SQLite, and so are other things.
        return kind == sqlite3.SQLITE_FULL or (
            kind == sqlite3.SQLITE_IOERR and not has_space(self._folder)
        )


@contextmanager
def read_only(path: Path, *, probe: str) -> Iterator[sqlite3.Connection]:
    """A transaction that only reads: both sides of the account are seen at one moment.

    Args:
        path: of the file.
        probe: a query that works if the file can be read.
    """
    with closing(_opened(path, probe)) as db:
        db.execute("BEGIN")
        yield db


def _opened(path: Path, probe: str) -> sqlite3.Connection:
    """Read-only; where even that needs a file that cannot be made, as it is on the disk."""
    uri = path.resolve().as_uri()
    db = sqlite3.connect(f"{uri}?mode=ro", uri=True, timeout=_BUSY_S)
    try:
        db.execute(probe)
    except sqlite3.Error as error:
        db.close()
        if error.sqlite_errorcode & _PRIMARY not in _CANNOT_WRITE:
            raise
        # A disk that cannot be written holds no run in progress.
        db = sqlite3.connect(f"{uri}?mode=ro&immutable=1", uri=True, timeout=_BUSY_S)
    return db
