"""System calls by who may make them: `system_calls.csv`, with the numbers of x86_64 and aarch64."""

import csv
from pathlib import Path

Calls = dict[str, tuple[int, int | None]]
"""By name: the number on x86_64, and on aarch64, None where it has no such call."""


def _calls(allowed: str) -> Calls:
    with (Path(__file__).parent / "system_calls.csv").open(encoding="utf-8") as file:
        return {
            row["call"]: (int(row["x86_64"]), int(row["aarch64"]) if row["aarch64"] else None)
            for row in csv.DictReader(file)
            if row["allowed"] == allowed
        }


PLAIN = _calls("always")
"""Nothing here makes, renames or changes a file, opens a socket, starts a program or a process,
maps memory outside the address space limit, or touches another process. Landlock does not govern
changes of mode, owner or times, so their absence here is what denies them."""
COMPILER = _calls("in a compiler") | _calls("with links")
"""What a compiler needs beyond that; Landlock says on which files."""
_NAMES = ("in a tree", "in an event loop", "with a pair of sockets", "with links", "with locks")
SETS = {name: _calls(name) for name in _NAMES}
"""What some compilers or interpreters need beyond that: folders are made and files moved where
Landlock lets them; a process watches its own descriptors, or is connected to itself and to nothing
else, as it can send to no address; links are read, which tell of paths as `stat` does."""
WORKSPACE = (
    _calls("in a workspace") | SETS["in a tree"] | SETS["in an event loop"] | SETS["with locks"]
)
"""What a shell and its programs need beyond a compiler: processes, folders, and pairs of stream
sockets, which have no address."""
NETWORK = _calls("with a network")
"""What the programs of a workspace need beyond that to reach its proxy."""
UNSUPPORTED = _calls("not supported in a workspace")
"""What programs try and go on without where a file system lacks it: attributes of files, which
the kernel would keep in memory."""
GUARDED = _calls("with arguments")
"""Allowed with certain arguments only: see `argument_guards`."""
GUARDED_IN_WORKSPACE = _calls("in a workspace with arguments")
GUARDED_WITH_NETWORK = _calls("with a network and arguments")
EXECVEAT: tuple[int, int | None] = (322, 281)
"""Only for compiled programs, and only with AT_EMPTY_PATH."""
_NOT_IN_WORKSPACE = ("sysinfo",)
"""Calls that a compiler needs, but tell of the machine's other work."""
_JAIL_WIDE = ("kill", "tgkill")
"""In a workspace allowed for any process, as the process namespace, the user id or Landlock keep
signals in the jail: see `jailed/workspace/agent.py`."""


def in_workspace(*, network: bool) -> tuple[Calls, Calls]:
    """The calls that are allowed in a workspace, and those with certain arguments only."""
    allowed = PLAIN | COMPILER | WORKSPACE | (NETWORK if network else {})
    allowed |= {name: numbers for name, numbers in GUARDED.items() if name in _JAIL_WIDE}
    allowed = {name: calls for name, calls in allowed.items() if name not in _NOT_IN_WORKSPACE}
    guarded = {name: numbers for name, numbers in GUARDED.items() if name not in _JAIL_WIDE}
    guarded |= GUARDED_IN_WORKSPACE | (GUARDED_WITH_NETWORK if network else {})
    return allowed, guarded
