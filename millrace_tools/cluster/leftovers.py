"""Makes sure that nothing this process started outlives it.

Orphaned grandchildren are handed to this process (it is made a child subreaper, prctl(2)),
so its descendants are exactly the processes that it started.
"""

import ctypes
import os
import time
from contextlib import suppress
from pathlib import Path

import psutil

_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37
_SHARED_MEMORY = Path("/dev/shm")
_POLL_S = 0.05
_SETTLE_S = 0.5
_KILL_S = 10.0


def adopt_orphans(adopt: bool = True) -> bool:
    """Become the parent of every descendant whose own parent dies, or no longer.

    Such a parent has to reap them: otherwise they stay zombies, and a PID namespace cannot end
    while a zombie of it is left.

    Returns:
        Whether this process adopted orphans before.

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


def descendants(root: int) -> list[int]:
    """Process ids of the living descendants of `root`, without zombies."""
    return [process.pid for process in _descendants(root)]


def _descendants(root: int) -> list[psutil.Process]:
    try:
        below = psutil.Process(root).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return [process for process in below if not is_over(process)]


def is_over(process: psutil.Process) -> bool:
    """Whether it has ended, reaped or not."""
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


def end_descendants(*, grace_s: float, spare: frozenset[int] = frozenset()) -> list[int]:
    """Wait for all descendants but the spared ones to end, then kill and reap them.

    Returns:
        Those that had to be killed.
    """
    left = _wait_for_none(grace_s, spare)
    killed: set[int] = set()
    deadline = time.monotonic() + _KILL_S
    while left and time.monotonic() < deadline:
        for process in left:
            killed.add(process.pid)
            with suppress(psutil.NoSuchProcess):
                process.kill()
        left = _wait_for_none(_POLL_S, spare)
    return sorted(killed)


def kill_those_with(argument: str) -> None:
    """Kill the descendants that have this in an argument; their parents reap them."""
    for process in _descendants(os.getpid()):
        with suppress(psutil.NoSuchProcess):
            if any(argument in one for one in process.cmdline()):
                process.kill()


def shared_memory_segments() -> set[Path]:
    """The segments in /dev/shm that belong to this user."""
    found = set()
    for path in _SHARED_MEMORY.glob("*"):
        with suppress(OSError):  # it went meanwhile
            if path.is_file() and path.stat().st_uid == os.getuid():
                found.add(path)
    return found


def forgotten_segments(before: set[Path]) -> set[Path]:
    """The segments that are newer than `before` and that no living process maps."""
    inodes = {}
    for path in shared_memory_segments() - before:
        with suppress(OSError):  # it went meanwhile
            inodes[path] = path.stat().st_ino
    # Read after the inodes: a segment that is mapped in between counts as in use.
    in_use = _mapped_inodes() if inodes else set()
    return {path for path, inode in inodes.items() if inode not in in_use}


def remove_segments_since(before: set[Path]) -> set[Path]:
    """Unlink the segments newer than `before` that no process maps, and return them.

    Looks twice: another program of this user may be between making a segment and mapping it.
    """
    forgotten = forgotten_segments(before)
    if forgotten:
        time.sleep(_SETTLE_S)
        forgotten &= forgotten_segments(before)
    for path in forgotten:
        path.unlink(missing_ok=True)
    return forgotten


def _wait_for_none(seconds: float, spare: frozenset[int]) -> list[psutil.Process]:
    deadline = time.monotonic() + seconds
    while True:
        left = [one for one in _descendants(os.getpid()) if one.pid not in spare]
        with suppress(ChildProcessError):  # after looking, so that no zombie is left either
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        if not left or time.monotonic() >= deadline:
            return left
        time.sleep(_POLL_S)


def _mapped_inodes() -> set[int]:
    """Inodes of /dev/shm that a process maps.

    Names are not enough: the C library maps a semaphore under a temporary name, and the kernel
    keeps that name.
    """
    mapped: set[int] = set()
    prefix = f" {_SHARED_MEMORY}/"
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with suppress(OSError):  # the process ended, or belongs to another user
            lines = maps.read_text().splitlines()
            # The fields are address, permissions, offset, device, inode, path.
            mapped.update(int(line.split()[4]) for line in lines if prefix in line)
    return mapped
