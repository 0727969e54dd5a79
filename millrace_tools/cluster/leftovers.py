"""Makes sure that nothing this process started outlives it.

Orphaned grandchildren are handed to this process (it is made a child subreaper, prctl(2)),
so its descendants are exactly what it started, whoever forgot them.
"""

import ctypes
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37
_BEGAN = 17  # of the fields of proc(5)'s stat after the parent: the 22nd of all
_SHARED_MEMORY = Path("/dev/shm")
_POLL_S = 0.05
_SETTLE_S = 0.5


def adopt_orphans(adopt: bool = True) -> bool:
    """Become the parent of every descendant whose own parent dies, or no longer.

    Who stays it without asking how they ended keeps them as zombies, and no PID namespace can end
    while one of its own is kept.

    Returns:
        Whether this process was it before.

    Raises:
        OSError: the kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    before = ctypes.c_int()
    if libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_GET_CHILD_SUBREAPER)")
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, int(adopt), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")
    return bool(before.value)


class Process(NamedTuple):
    """One of this machine's processes.

    Attributes:
        pid: its id, which another may have after it.
        began: in clock ticks since the machine did; with the id it names one process for ever.
        parent: process id.
        is_zombie: it has ended, and its parent has not asked how.
    """

    pid: int
    began: int
    parent: int
    is_zombie: bool


def processes() -> Iterator[Process]:
    """All of this machine."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            # A name may be any bytes, and is cut after fifteen of them.
            stat = (entry / "stat").read_text(errors="replace")
        except OSError:
            continue  # it ended meanwhile
        state, parent, *rest = stat.rpartition(")")[2].split()
        yield Process(int(entry.name), int(rest[_BEGAN]), int(parent), state == "Z")


def descendants(root: int) -> list[int]:
    """Process ids of the living descendants of `root`, zombies left out."""
    children: dict[int, list[int]] = {}
    for process in processes():
        if not process.is_zombie:
            children.setdefault(process.parent, []).append(process.pid)
    found, todo = [], [root]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def end_descendants(
    *, grace_s: float, kill_s: float = 10.0, spare: frozenset[int] = frozenset()
) -> list[int]:
    """Wait for all descendants but the spared ones to end, then kill and reap them.

    Returns:
        Those that had to be killed.
    """
    left = _wait_for_none(grace_s, spare)
    killed: set[int] = set()
    deadline = time.monotonic() + kill_s
    while left and time.monotonic() < deadline:
        for pid in left:
            killed.add(pid)
            _kill(pid)
        left = _wait_for_none(_POLL_S, spare)
    return sorted(killed)


def kill_those_with(argument: str) -> None:
    """Kill the descendants that have this among their arguments; who started them reaps them."""
    for pid in descendants(os.getpid()):
        try:
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:
            continue  # it ended meanwhile
        if os.fsencode(argument) in arguments:
            _kill(pid)


def shared_memory_segments() -> set[Path]:
    """The segments in /dev/shm that belong to this user."""
    found = set()
    for path in _SHARED_MEMORY.iterdir() if _SHARED_MEMORY.is_dir() else ():
        try:
            if path.is_file() and path.stat().st_uid == os.getuid():
                found.add(path)
        except OSError:
            continue  # it went meanwhile
    return found


def forgotten_segments(before: set[Path]) -> set[Path]:
    """The segments that are newer than `before` and that no living process maps."""
    new = shared_memory_segments() - before
    if not new:
        return set()
    # Looked up first: what is mapped in between is then known to be in use.
    inodes = {path: _inode(path) for path in new}
    in_use = _mapped_inodes()
    return {path for path, inode in inodes.items() if inode is not None and inode not in in_use}


def remove_segments_since(before: set[Path]) -> set[Path]:
    """Unlink the segments newer than `before` that are still forgotten after a moment.

    The moment is for other programs of this user, which may just be between making a
    segment and mapping it.

    Returns:
        Those that were removed.
    """
    forgotten = forgotten_segments(before)
    if forgotten:
        time.sleep(_SETTLE_S)
        forgotten &= forgotten_segments(before)
    for path in forgotten:
        path.unlink(missing_ok=True)
    return forgotten


def _wait_for_none(seconds: float, spare: frozenset[int]) -> set[int]:
    deadline = time.monotonic() + seconds
    while True:
        left = set(descendants(os.getpid())) - spare
        _reap()  # after looking: what is not alive any more leaves no zombie either
        if not left or time.monotonic() >= deadline:
            return left
        time.sleep(_POLL_S)


def _reap() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        return  # no children at all


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return  # it ended meanwhile


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except OSError:
        return None  # it went meanwhile


def _mapped_inodes() -> set[int]:
    """Inodes of /dev/shm that a process maps.

    Names would not do: a semaphore is mapped under a name that the C library gave it first
    and took away, and the kernel goes on calling it that.
    """
    mapped: set[int] = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            text = maps.read_text()
        except OSError:
            continue  # it ended, or belongs to another user
        prefix = f" {_SHARED_MEMORY}/"
        # The fields are address, permissions, offset, device, inode, path.
        mapped.update(int(line.split()[4]) for line in text.splitlines() if prefix in line)
    return mapped
