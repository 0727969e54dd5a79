"""`millrace versions`: a line per version, and the newest failure of each version."""

import argparse
import asyncio
import time
from collections.abc import Sequence

from rich.console import Console

from millrace_tools.command import RAY_ADDRESS, command
from millrace_tools.output import print_items, print_line
from services.protocol.weights.version_ledger import VersionRecord

_DIGEST = 12  # characters; enough to tell versions apart


@command("versions", RAY_ADDRESS)
def versions(arguments: argparse.Namespace, console: Console) -> int:
    """Show what became of the newest weight versions."""
    # Ray takes seconds to import; only commands that join the cluster need it.
    from millrace_tools.client.joined_cluster import joined_cluster
    from services.peers import bus_peer

    with joined_cluster(arguments.address):
        show_versions(asyncio.run(bus_peer().versions()), console)
    return 0


def show_versions(records: Sequence[VersionRecord], console: Console) -> None:
    """Print the records, the newest version last."""
    if not records:
        console.print("No versions yet.")
        return
    print_items(records, _COLUMNS, console)
    for record in records:
        if failed := [one for one in record.outcomes if one.error is not None]:
            newest = failed[-1]
            line = f"{record.version}: {_time(newest.at)} {newest.replica_id}: {newest.error}"
            print_line(line, console)


def _last(record: VersionRecord) -> str | None:
    return _time(max((one.at for one in record.outcomes if one.error is None), default=None))


def _time(at: float | None) -> str | None:
    return None if at is None else time.strftime("%H:%M:%S", time.localtime(at))


_COLUMNS = {
    "version": lambda record: record.version,
    "step": lambda record: record.train_step,
    "base": lambda record: record.base,
    "published": lambda record: _time(record.published_at),
    "committed": lambda record: record.commits,
    "last": _last,
    "failed": lambda record: record.failures,
    "digest": lambda record: record.digest[:_DIGEST],
}
