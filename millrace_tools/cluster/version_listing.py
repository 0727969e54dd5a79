"""`millrace versions`: a line per version, and the newest failure of each that has one."""

import time
from collections.abc import Sequence

from rich.console import Console

from millrace_tools.rows import show_rows
from services.protocol.weights.version_ledger import VersionOutcome, VersionRecord

_COLUMNS = ("version", "step", "base", "published", "committed", "last", "failed", "digest")
_DIGEST = 12  # characters; enough to tell versions apart


def show_versions(records: Sequence[VersionRecord], console: Console) -> None:
    """Print the records, the newest version last."""
    if not records:
        console.print("No versions yet.")
        return
    show_rows([_COLUMNS, *map(_row, records)], console)
    for record in records:
        failed = [one for one in record.outcomes if one.error is not None]
        if failed:
            _show_failure(record.version, failed[-1], console)


def _row(record: VersionRecord) -> tuple[str, ...]:
    committed = [one.at for one in record.outcomes if one.error is None]
    return (
        str(record.version),
        _shown(record.train_step),
        _shown(record.base),
        _time(record.published_at),
        str(record.commits),
        _time(max(committed, default=None)),
        str(record.failures),
        record.digest[:_DIGEST] or "-",
    )


def _show_failure(version: int, failed: VersionOutcome, console: Console) -> None:
    line = f"{version}: {_time(failed.at)} {failed.replica_id}: {failed.error}"
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def _shown(value: int | None) -> str:
    return "-" if value is None else str(value)


def _time(at: float | None) -> str:
    return "-" if at is None else time.strftime("%H:%M:%S", time.localtime(at))
