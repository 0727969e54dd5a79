"""A ledger's SQLite file, which goes on in memory while there is no room on its disk.

A transaction that finds no room is rolled back by SQLite. It is then done in a copy of the
database in memory, as are those after it, and all are kept as the statements that they were.
`catch_up` brings them to the file, in order. A kill meanwhile leaves the file as it was before the
first of them, which is what a kill at that moment would have left.
"""

import sqlite3
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from services.disk import has_room

_Statement = tuple[str, Sequence[Any]]
_PRIMARY = 0xFF
"""Of SQLite's extended error codes, the bits that say which kind it is."""


class LedgerFile:
    """One connection; use it from one thread.

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
        """There are transactions that the file does not have."""
        return self.connection is not self._file

    def execute(self, statement: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        """Ask for something, or change something within a `transaction`."""
        if self._now is not None:
            self._now.append((statement, values))
        try:
            return self.connection.execute(statement, values)
        except sqlite3.OperationalError as error:
            if self._now is None or self.behind or not self._lacks_room(error):
                raise
            return self._go_on_in_memory(self._now)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All that is executed within is done, or none of it."""
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
        """Bring to the file what it lacks; False while there is no room."""
        while self._late:
            try:
                for statement, values in self._late[0]:
                    self._file.execute(statement, values)
            except sqlite3.OperationalError as error:
                self._undo()
                if not self._lacks_room(error):
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
        """Do what the transaction in progress has done so far again, in memory."""
        self._undo()
        memory = sqlite3.connect(":memory:", isolation_level=None)
        self._file.backup(memory)
        self.connection = memory
        self.fell_behind()
        return [memory.execute(statement, values) for statement, values in begun][-1]

    def _undo(self) -> None:
        if self._file.in_transaction:  # SQLite has mostly done so by itself
            self._file.execute("ROLLBACK")

    def _lacks_room(self, error: sqlite3.OperationalError) -> bool:
        kind = error.sqlite_errorcode & _PRIMARY
        # A quota that is used up is an I/O error to SQLite, and so are other things.
        return kind == sqlite3.SQLITE_FULL or (
            kind == sqlite3.SQLITE_IOERR and not has_room(self._folder)
        )
