"""Handles a workspace's files, in a process of the jail that is confined like a program.

The workspace is the current folder. Every path is opened from there one part at a time and below
it only (`RESOLVE_BENEATH` of openat2(2)), so that no link leads out. Content travels in memory
files: standard input is what is written, standard output what was read, and descriptor 3 gets the
outcome as JSON.
"""

import contextlib
import ctypes
import errno
import json
import os
import stat
import struct
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

_REPORT_FD = 3
_OPENAT2 = 437
_NO_MAGIC_LINKS, _NO_LINKS, _BENEATH = 0x02, 0x04, 0x08
_CHUNK = 1 << 20
_MAX_ENTRIES = 10_000
KEPT = ".tmp"
"""The folder for temporary files, which is no part of what was written."""
_FOLDER = os.O_PATH | os.O_DIRECTORY

_libc = ctypes.CDLL(None, use_errno=True)

Order = dict[str, Any]


class Refused(Exception):
    """A file cannot be handled: the kind of problem, and its path."""

    def __init__(self, kind: str, path: str) -> None:
        self.kind, self.path = kind, path
        super().__init__(kind)


def handle(order: Order, handlers: dict[str, Callable[[Order], Order]]) -> None:
    """Carry out one order and report."""
    try:
        outcome = handlers[order["do"]](order)
    except Refused as refused:
        outcome = {"refused": refused.kind, "path": _text(refused.path)}
    except MemoryError:
        outcome = {"refused": "memory", "path": _text(order.get("path", "."))}
    except OSError as error:
        kind = _KINDS.get(error.errno or 0, "")
        if not kind:
            raise
        outcome = {"refused": kind, "path": _text(order.get("path", "."))}
    content = memoryview(json.dumps(outcome).encode())
    while content:
        content = content[os.write(_REPORT_FD, content) :]


_KINDS = {
    errno.ENOENT: "missing",
    errno.ENOTDIR: "missing",
    errno.ELOOP: "link",
    errno.EXDEV: "outside",
    errno.ENXIO: "not_a_file",
    errno.EISDIR: "not_a_file",
    errno.EACCES: "denied",
    errno.EPERM: "denied",
    errno.ETXTBSY: "busy",
    errno.ENOSPC: "full",
    errno.EDQUOT: "full",
    errno.EFBIG: "full",
    errno.ENAMETOOLONG: "name",
    errno.EINVAL: "name",
}


def open_beneath(path: str, flags: int, *, at: int, mode: int = 0, links: bool = True) -> int:
    """Open a path that stays below the folder `at`.

    Raises:
        OSError: it does not, with EXDEV or ELOOP, or cannot be opened.
    """
    resolve = _BENEATH | _NO_MAGIC_LINKS | (0 if links else _NO_LINKS)
    how = struct.pack("=QQQ", flags | os.O_CLOEXEC, mode, resolve)
    name = os.fsencode(path)
    descriptor = int(_libc.syscall(_OPENAT2, ctypes.c_int(at), name, how, ctypes.c_size_t(24)))
    if descriptor < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), path)
    return descriptor


@cache
def root() -> int:
    """The workspace's folder, opened once."""
    return os.open(".", _FOLDER | os.O_CLOEXEC)


@contextlib.contextmanager
def parent(path: str, *, make: bool, links: bool = True) -> Iterator[tuple[int, str]]:
    """The folder above a path, made if asked, and the name in it. Without `links` none of its
    parts may be one."""
    *folders, name = [part for part in path.split("/") if part not in ("", ".")] or ["."]
    folder = os.dup(root())
    try:
        for part in folders:
            if make:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, 0o755, dir_fd=folder)
            below = open_beneath(part, _FOLDER, at=folder, links=links)
            os.close(folder)
            folder = below
        yield folder, name
    finally:
        os.close(folder)


def _write(order: Order) -> Order:
    """Write files whose contents follow each other on standard input."""
    for path, size, mode in order["entries"]:
        with parent(path, make=True) as (folder, name):
            write_file(folder, name, mode, _input(size), path)
    return {}


def write_file(folder: int, name: str, mode: int, content: Iterator[bytes], path: str) -> None:
    """Write a plain file in an open folder; a link or a device in its place is refused.

    Raises:
        Refused: there is something else of that name.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    descriptor = os.open(name, flags, 0o600, dir_fd=folder)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise Refused("not_a_file", path)
        os.ftruncate(descriptor, 0)
        for part in content:
            view = memoryview(part)
            while view:
                view = view[os.write(descriptor, view) :]
        os.fchmod(descriptor, mode & 0o777)
    finally:
        os.close(descriptor)


def _input(size: int) -> Iterator[bytes]:
    while size > 0:
        part = os.read(0, min(size, _CHUNK))
        if not part:
            return
        size -= len(part)
        yield part


def _read(order: Order) -> Order:
    """Copy a plain file to standard output."""
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
    descriptor = open_beneath(order["path"], flags, at=root())
    facts = os.fstat(descriptor)
    if not stat.S_ISREG(facts.st_mode):
        raise Refused("not_a_file", order["path"])
    left = order["max_bytes"]
    while part := os.read(descriptor, min(_CHUNK, left + 1)):
        left -= len(part)
        if left < 0:
            raise Refused("too_large", order["path"])
        os.write(1, part)
    return {}


def _list(order: Order) -> Order:
    """The entries of a folder, by name; of a file the file itself."""
    path = order["path"]
    descriptor = open_beneath(path, os.O_PATH, at=root())
    facts = os.fstat(descriptor)
    if not stat.S_ISDIR(facts.st_mode):
        return {"entries": [_entry(path, facts)]}
    folder = open_beneath(path, os.O_RDONLY | os.O_DIRECTORY, at=root())
    entries: list[tuple[str, str, int, int]] = []
    with os.scandir(folder) as found:
        for entry in found:
            if len(entries) == _MAX_ENTRIES:
                raise Refused("too_many", path)
            if path == "." and entry.name == KEPT:
                continue
            with contextlib.suppress(FileNotFoundError):  # it went meanwhile
                below = entry.name if path == "." else f"{path}/{entry.name}"
                entries.append(_entry(below, os.lstat(entry.name, dir_fd=folder)))
    return {"entries": sorted(entries)}


def _entry(path: str, facts: os.stat_result) -> tuple[str, str, int, int]:
    mode = facts.st_mode
    kind = "file" if stat.S_ISREG(mode) else "folder" if stat.S_ISDIR(mode) else "other"
    kind = "link" if stat.S_ISLNK(mode) else kind
    return _text(path), kind, facts.st_size, stat.S_IMODE(mode)


def _remove(order: Order) -> Order:
    """Remove a file, or a folder with all that is in it."""
    with parent(order["path"], make=False) as (folder, name):
        if name == ".":
            for entry in os.listdir("."):
                if entry != KEPT:
                    remove_tree(folder, entry)
        else:
            remove_tree(folder, name)
    return {}


def remove_tree(folder: int, name: str) -> None:
    """Remove an entry of an open folder, however deep it is and whatever its modes are.

    Folders are moved up into a new one before they are emptied, so that no path grows.
    """
    if not stat.S_ISDIR(os.lstat(name, dir_fd=folder).st_mode):
        os.unlink(name, dir_fd=folder)
        return
    with contextlib.suppress(OSError):  # it is not empty
        os.rmdir(name, dir_fd=folder)
        return
    heap = f".removed-{os.urandom(8).hex()}"
    os.mkdir(heap, 0o700, dir_fd=folder)
    top = os.open(heap, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        _open_up(folder, name)
        os.rename(name, "0", src_dir_fd=folder, dst_dir_fd=top)
        made = 1
        while waiting := os.listdir(top):
            for number in waiting:
                made = _empty(top, number, made)
                os.rmdir(number, dir_fd=top)
        os.rmdir(heap, dir_fd=folder)
    finally:
        os.close(top)


def _empty(top: int, number: str, made: int) -> int:
    """Empty one folder; the folders in it go up to `top` with new numbers."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    emptied = os.open(number, flags, dir_fd=top)
    try:
        for entry in list(os.scandir(emptied)):
            if entry.is_dir(follow_symlinks=False):
                _open_up(emptied, entry.name)
                os.rename(entry.name, str(made), src_dir_fd=emptied, dst_dir_fd=top)
                made += 1
            else:
                os.unlink(entry.name, dir_fd=emptied)
    finally:
        os.close(emptied)
    return made


def _open_up(folder: int, name: str) -> None:
    with contextlib.suppress(PermissionError):  # another user's, which a service that is root is
        os.chmod(name, 0o700, dir_fd=folder)


def _text(path: str) -> str:
    """A path as UTF-8 can hold it: a byte that is no UTF-8 becomes `\\xNN`."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


HANDLERS: dict[str, Callable[[Order], Order]] = {
    "write": _write,
    "read": _read,
    "list": _list,
    "remove": _remove,
}
