"""`millrace replica`: a line per rollout server."""

from collections.abc import Sequence

from rich.console import Console

from millrace_tools.rows import show_rows
from services.protocol.weights.weight_bus import Member

_COLUMNS = ("replica", "state", "version", "leased", "address", "last error")


def show_members(members: Sequence[Member], console: Console) -> None:
    """Print the members in order of registration."""
    if not members:
        console.print("No rollout server is registered.")
        return
    show_rows([_COLUMNS, *map(_row, members)], console)


def _row(member: Member) -> tuple[str, ...]:
    version = "-" if member.committed_version is None else str(member.committed_version)
    leased = "yes" if member.leased else "no"
    return (
        member.replica_id,
        member.state,
        version,
        leased,
        member.address,
        member.last_error or "-",
    )
