"""A ledger as it is now, to be read beside its run or after a crash."""

import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from services.orchestrator.ledger.ledger import Ledger
from services.protocol.errors import InvalidInput


@contextmanager
def ledger_copy(run_dir: str | Path) -> Iterator[Ledger]:
    """A consistent copy of a run's ledger; the run's own file is only read.

    Transactions that a killed process had committed are in it, others are not.

    Raises:
        InvalidInput: there is no ledger, or it cannot be read.
    """
    path = Path(run_dir) / "ledger.sqlite"
    if not path.is_file():
        raise InvalidInput("run directory", str(run_dir), "It holds no ledger.sqlite.")
    with tempfile.TemporaryDirectory() as folder:
        beside = Path(folder) / path.name
        try:
            with (
                closing(sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)) as source,
                closing(sqlite3.connect(beside)) as copy,
            ):
                source.backup(copy)
            ledger = Ledger(beside)
        except sqlite3.Error as error:
            fix = f"It cannot be read as a ledger: {error}."
            raise InvalidInput("ledger", str(path), fix) from None
        with closing(ledger):
            yield ledger
