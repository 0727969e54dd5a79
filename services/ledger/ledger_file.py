"""Connections to a ledger's SQLite file."""

import os
import shutil
import sqlite3
import tempfile
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from services.disk import has_space
from services.file_system import FileSystem
from services.ledger.writer_lease import LEASE_S, LedgerHeld, WriterLease, holder_of, named
from services.protocol.errors import InvalidInput

_Values = Sequence[Any] | Mapping[str, Any]
_Statement = tuple[str, _Values]
_PRIMARY = 0xFF
"""Of SQLite's extended error codes, the bits that say which kind it is."""
_BUSY_S = 2.0
_NETWORK_BUSY_MS = 30_000
"""Without a WAL a commit waits for readers, for so long at most."""
_CANNOT_WRITE = (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN)


class LedgerTaken(RuntimeError):
    """Another process took the ledger over; nothing of the transaction was written."""


class LedgerFile:
    """One connection, which goes on in memory while the disk is full; use it from one thread.

    A ledger has one writer. Each that opens the file takes the next writer number, which the
    file keeps, and every transaction compares it with its own: a writer that was stopped until
    another took over finds a greater one and writes nothing. On a network file system there is
    a `WriterLease`, too, and a rollback journal in place of SQLite's WAL, which needs memory
    that all its processes share.

    SQLite rolls a transaction back that finds no space. It is then done in a copy of the
    database in memory, as are those after it, and all are kept as statements. `catch_up` writes
    them to the file, in order. A kill meanwhile leaves the file as it was before the first of
    them, which is what a kill at that moment would have left.

    Attributes:
        fell_behind: is called when the file takes no more transactions.
        file_system: on which the file is.
        taken: whether another process took the file over.

    Raises:
        LedgerHeld: another process writes it.
        InvalidInput: its file system cannot keep a second writer away, or another process has
            the file locked.
    """

    def __init__(self, path: str | Path) -> None:
        self._path, self._folder = Path(path), Path(path).parent
        self.fell_behind: Callable[[], None] = lambda: None
        self.taken = False
        self._now: list[_Statement] | None = None
        self._late: deque[list[_Statement]] = deque()
        self.file_system = FileSystem.of(self._folder)
        self._lease: WriterLease | None = None
        if option := self.file_system.locks_of_one_host:
            raise InvalidInput("ledger", str(path), _unlocked(self.file_system, option))
        self._file = self.connection = sqlite3.connect(path, isolation_level=None)
        try:
            if self.file_system.network:
                self._lease = WriterLease(self._path)
            self._set_up()
        except BaseException:
            self.close()
            raise

    def _set_up(self) -> None:
        """Choose the journal, and take the next writer number."""
        try:
            if self._lease is None:
                self._file.execute("PRAGMA journal_mode = WAL")
                # In WAL mode NORMAL survives the death of the process; only a power cut can
                # undo the last transactions, and then as a whole. See `sync`.
                self._file.execute("PRAGMA synchronous = NORMAL")
            else:
                self._leave_wal()
            # Nothing of a transaction is in the file before its end, or in a temporary file.
            self._file.execute("PRAGMA cache_spill = OFF")
            self._file.execute("PRAGMA temp_store = MEMORY")
            self._take_over()
        except sqlite3.OperationalError as error:
            if self._lease is None or error.sqlite_errorcode & _PRIMARY != sqlite3.SQLITE_BUSY:
                raise
            fix = (
                f"It is on a network file system ({self.file_system.kind}), and another process "
                "has it locked or open in SQLite's WAL mode, which is safe on one host only: end "
                f"that process (`fuser {self._path}` on each host names it), then try again."
            )
            raise InvalidInput("ledger", str(self._path), fix) from None
        if self._lease is not None:
            self._file.execute(f"PRAGMA busy_timeout = {_NETWORK_BUSY_MS}")

    def sync(self) -> None:
        """Put every transaction on the disk itself, so that a power cut undoes none of them."""
        log = self._path.with_name(f"{self._path.name}-wal")
        if self._lease is not None or not log.exists():
            return  # a rollback journal is synchronised with each
        file = os.open(log, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)

    def _leave_wal(self) -> None:
        """Use a rollback journal; a file in WAL mode is brought up to date and converted."""
        # In this locking mode SQLite reads a WAL without shared memory (sqlite.org/wal.html,
        # section 8), and gets no lock while another process has the file open in WAL mode.
        self._file.execute("PRAGMA locking_mode = EXCLUSIVE")
        # The journal's file stays: hosts remember for a while which names a folder has.
        self._file.execute("PRAGMA journal_mode = PERSIST")
        self._file.execute("PRAGMA locking_mode = NORMAL")
        self._file.execute("PRAGMA synchronous = FULL")
        self._file.execute("SELECT COUNT(*) FROM sqlite_master")  # lets go of the lock

    def _take_over(self) -> None:
        self._file.execute("BEGIN IMMEDIATE")
        self._writer = self._newest_writer() + 1
        self._file.execute(f"PRAGMA user_version = {self._writer}")
        if self._lease is not None and self._lease.lost:  # to one that saw it run out, too
            raise LedgerHeld("ledger", str(self._path), "Another process just opened it.")
        self._file.execute("COMMIT")

    @property
    def journal_mode(self) -> str:
        """Of the file, as SQLite names it."""
        return str(self._file.execute("PRAGMA journal_mode").fetchone()[0])

    def look_taken(self) -> bool:
        """Look whether another process took the file over, which no transaction may have met."""
        self.taken = self.taken or self._newest_writer() != self._writer
        return self.taken

    def _newest_writer(self) -> int:
        return int(self._file.execute("PRAGMA user_version").fetchone()[0])

    def _check_writer(self) -> None:
        """Within a transaction of the file: nobody else can take over before its end."""
        if not self.look_taken():
            return
        self._file.execute("ROLLBACK")
        raise LedgerTaken(
            f"{self._path} has another writer: {named(holder_of(self._path))}. This process was "
            "stopped or cut off until the other took over, and has written nothing since"
        )

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
            if not self.behind:
                self._check_writer()
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
                begin, *changes = self._late[0]
                self._file.execute(*begin)
                self._check_writer()
                for statement, values in changes:
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
        """Close the file, and let another process write it; what it lacks is lost."""
        self._file.close()
        self.connection.close()
        if self._lease is not None:
            self._lease.release()

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


def network_terms(place: FileSystem) -> str:
    """What holds for a ledger on a network file system, for people; empty: it is a local one."""
    if not place.network:
        return ""
    if option := place.locks_of_one_host:
        return f"no run can begin: {_unlocked(place, option)}"
    return (
        f"{place.mount} is a network file system ({place.kind}). A ledger there has a rollback "
        "journal in place of WAL, syncs each transaction, and has one writer, by a lease: when "
        f"its machine dies, another can continue after {LEASE_S:.0f} s"
    )


def _unlocked(place: FileSystem, option: str) -> str:
    return (
        f"{place.mount} ({place.kind}) is mounted with {option}, so other hosts do not see this "
        "host's locks, and two writers would damage the ledger. Mount it without that option, or "
        "choose another run_root."
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
        if error.sqlite_errorcode == sqlite3.SQLITE_READONLY_ROLLBACK:
            return _rolled_back(path, probe)
        if error.sqlite_errorcode & _PRIMARY not in _CANNOT_WRITE:
            raise
        # A disk that cannot be written holds no run in progress.
        db = sqlite3.connect(f"{uri}?mode=ro&immutable=1", uri=True, timeout=_BUSY_S)
    return db


def _rolled_back(path: Path, probe: str) -> sqlite3.Connection:
    """A copy in memory, without the transaction that a kill cut off.

    The next writer undoes that in the file; a reader must not.
    """
    journal = path.with_name(f"{path.name}-journal")
    memory = sqlite3.connect(":memory:")
    with tempfile.TemporaryDirectory() as folder:
        with suppress(FileNotFoundError):
            before = journal.stat().st_mtime_ns
            shutil.copy(journal, folder)
            shutil.copy(path, folder)
            if journal.stat().st_mtime_ns == before:
                with closing(sqlite3.connect(Path(folder, path.name))) as copy:
                    copy.backup(memory)
                return memory
    return _opened(path, probe)  # the next writer came meanwhile
