"""Archives of a workspace's files: unpacked within limits, and made. See `files.py`.

An archive is what a client or a program wrote: what it says of itself is checked before an entry is
made, and what it holds while it is written. One that was made of a workspace (`own`) has what its
programs made, which links may lead anywhere; nothing here follows a link.
"""

import contextlib
import os
import stat
from collections.abc import Callable, Iterator
from typing import IO, Any

from services.reward_service.jailed.workspace import files
from services.reward_service.jailed.workspace.files import Refused, open_beneath

_MAX_DEPTH, _MAX_NAME, _MAX_PATH = 64, 255, 4096
_CHUNK = 1 << 20
_ENTRY_BYTES = 2048
_MORE_ENTRIES = 512
"""What an entry of a tar may take beside its content; and how many may be read ahead of."""

Order = dict[str, Any]


class _Budget:
    """Bytes and entries that an archive may still make."""

    def __init__(self, order: Order) -> None:
        self.bytes, self.entries = int(order["max_bytes"]), int(order["max_entries"])
        self.made = 0

    def entry(self, path: str) -> None:
        """Count an entry.

        Raises:
            Refused: there are too many.
        """
        self.made += 1
        if self.made > self.entries:
            raise Refused("too_many_entries", path)

    def parts(self, content: IO[bytes], path: str) -> Iterator[bytes]:
        """The content of an entry, counted before it is written.

        Raises:
            Refused: it is too much.
        """
        while part := content.read(_CHUNK):
            self.bytes -= len(part)
            if self.bytes < 0:
                raise Refused("too_much", path)
            yield part


class _Bounded:
    """A stream that ends with an error where it grows too long: one of zeros never ends."""

    def __init__(self, stream: Any, budget: _Budget) -> None:
        self._stream, self._budget = stream, budget
        self._max_bytes, self._read = budget.bytes, 0

    def read(self, size: int) -> bytes:
        """Read at most so many bytes.

        Raises:
            Refused: it is too long.
        """
        part: bytes = self._stream.read(min(size, _CHUNK))
        self._read += len(part)
        if self._read > self._max_bytes + _ENTRY_BYTES * (self._budget.made + _MORE_ENTRIES):
            raise Refused("too_much", ".")
        return part


def _unpack(order: Order) -> Order:
    """Unpack standard input into a folder."""
    import gzip
    import lzma
    import tarfile
    import zipfile
    import zlib

    broken = (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, gzip.BadGzipFile)
    budget = _Budget(order)
    into = order["path"]
    try:
        with open(0, "rb", closefd=False) as file:
            if order["kind"] == "zip":
                _unpack_zip(file, into, budget)
            else:
                _unpack_tar(file, into, order, budget)
    except (*broken, EOFError, ValueError, NotImplementedError) as error:
        # The last is a compression that this Python does not know.
        raise Refused("archive", into) from error
    return {"entries": budget.made}


def _unpack_tar(file: IO[bytes], into: str, order: Order, budget: _Budget) -> None:
    import gzip
    import tarfile

    stream: Any = gzip.GzipFile(fileobj=file) if order["kind"] == "tar.gz" else file
    bounded: Any = _Bounded(stream, budget)
    with tarfile.open(fileobj=bounded, mode="r|", errorlevel=2) as archive:
        for member in archive:
            path = _path(into, member.name)
            budget.entry(path)
            if member.isdir():
                _make_folder(path, member.mode)
            elif member.isreg():
                content = archive.extractfile(member)
                assert content is not None, "a plain file has content"
                _make_file(path, member.mode, budget.parts(content, path))
            elif member.issym():
                _make_link(path, member.linkname, anywhere=order["own"])
            elif member.islnk():
                _make_hard_link(path, _path(into, member.linkname))
            else:
                raise Refused("device", path)


def _unpack_zip(file: IO[bytes], into: str, budget: _Budget) -> None:
    import zipfile

    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            path = _path(into, member.filename)
            budget.entry(path)
            mode = member.external_attr >> 16
            if member.flag_bits & 1:
                raise Refused("encrypted", path)
            if member.is_dir():
                _make_folder(path, 0o755)
                continue
            if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFLNK):
                raise Refused("device", path)
            with archive.open(member) as content:
                if stat.S_ISLNK(mode):
                    _make_link(path, os.fsdecode(content.read(_MAX_PATH)))
                else:
                    _make_file(path, mode or 0o644, budget.parts(content, path))


def _path(into: str, name: str) -> str:
    """The path of an entry.

    Raises:
        Refused: it leads out of the folder, or no file can have it.
    """
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts:
        raise Refused("outside", name)
    if len(parts) > _MAX_DEPTH:
        raise Refused("too_deep", name)
    if "\0" in name or any(len(os.fsencode(part)) > _MAX_NAME for part in parts):
        raise Refused("name", name.replace("\0", "\\0"))
    return "/".join([*([] if into == "." else [into]), *parts]) or "."


def _make_folder(path: str, mode: int) -> None:
    with files.parent(path, make=True, links=False) as (folder, name):
        with contextlib.suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=folder)
        # It may have been there, and something else.
        os.close(open_beneath(name, os.O_PATH | os.O_DIRECTORY, at=folder, links=False))
        if path != ".":
            os.chmod(name, mode & 0o777 | 0o700, dir_fd=folder)


def _make_file(path: str, mode: int, content: Iterator[bytes]) -> None:
    with files.parent(path, make=True, links=False) as (folder, name):
        files.write_file(folder, name, mode, content, path)


def _make_link(path: str, target: str, *, anywhere: bool = False) -> None:
    """Make a link that stays in the workspace, or leads `anywhere`.

    Raises:
        Refused: it leads out.
    """
    depth = path.count("/")
    for part in () if anywhere else target.split("/"):
        depth += -1 if part == ".." else part not in ("", ".")
        if depth < 0 or target.startswith("/"):
            raise Refused("outside", path)
    with files.parent(path, make=True, links=False) as (folder, name):
        os.symlink(target, name, dir_fd=folder)


def _make_hard_link(path: str, target: str) -> None:
    with (
        files.parent(target, make=False, links=False) as (source, name),
        files.parent(path, make=True, links=False) as (folder, new),
    ):
        if not stat.S_ISREG(os.lstat(name, dir_fd=source).st_mode):
            raise Refused("not_a_file", target)
        os.link(name, new, src_dir_fd=source, dst_dir_fd=folder, follow_symlinks=False)


def _archive(order: Order) -> Order:
    """Write a folder or a file as a tar to standard output; what is neither, nor a link, is left
    out."""
    import tarfile

    top = order["path"]
    entries = 0
    with open(1, "wb", closefd=False) as file, tarfile.open(fileobj=file, mode="w|") as archive:
        for path, name, facts in _walk(top):
            entries += 1
            member = tarfile.TarInfo(name)
            member.mode, member.mtime = stat.S_IMODE(facts.st_mode), int(facts.st_mtime)
            if archive.offset + facts.st_size + _ENTRY_BYTES > order["max_bytes"]:
                raise Refused("too_large", path)
            if stat.S_ISDIR(facts.st_mode):
                member.type = tarfile.DIRTYPE
                archive.addfile(member)
            elif stat.S_ISLNK(facts.st_mode):
                member.type = tarfile.SYMTYPE
                with files.parent(path, make=False) as (folder, last):
                    member.linkname = os.readlink(last, dir_fd=folder)
                archive.addfile(member)
            elif stat.S_ISREG(facts.st_mode):
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
                with open(open_beneath(path, flags, at=files.root()), "rb") as content:
                    member.size = os.fstat(content.fileno()).st_size
                    archive.addfile(member, content)
    return {"entries": entries}


def _walk(top: str) -> Iterator[tuple[str, str, os.stat_result]]:
    """Path, name in the archive, and facts of everything below a folder, folders first; of a file
    the file alone.

    Raises:
        Refused: it is too deep.
    """
    waiting = [top]
    while waiting:
        path = waiting.pop()
        descriptor = open_beneath(path, os.O_PATH | os.O_NOFOLLOW, at=files.root())
        facts = os.fstat(descriptor)
        os.close(descriptor)
        name = path if top == "." else path.removeprefix(top).lstrip("/")
        if path != top or not stat.S_ISDIR(facts.st_mode):
            yield path, name or os.path.basename(path), facts
        if stat.S_ISDIR(facts.st_mode):
            if path.count("/") >= _MAX_DEPTH or len(os.fsencode(path)) > _MAX_PATH - _MAX_NAME:
                raise Refused("too_deep", path)
            folder = open_beneath(path, os.O_RDONLY | os.O_DIRECTORY, at=files.root())
            below = sorted(os.listdir(folder), reverse=True)
            os.close(folder)
            prefix = "" if path == "." else f"{path}/"
            waiting += [prefix + entry for entry in below if prefix or entry != files.KEPT]


HANDLERS: dict[str, Callable[[Order], Order]] = {
    **files.HANDLERS,
    "unpack": _unpack,
    "archive": _archive,
}
