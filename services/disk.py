"""Files written whole, and whether there is space for them on a disk."""

import errno
import os
import shutil
import tempfile
from pathlib import Path

DISK_FULL = frozenset((errno.ENOSPC, errno.EDQUOT))
"""What a file system says when it is full, or its user's quota is used up."""
_PROBED = 64 * 1024


def has_space(folder: Path) -> bool:
    """Whether a little more can be written into a folder, by trying: quotas count, too."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(_PROBED))
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        return error.errno not in DISK_FULL
    return True


def write_problem(folder: str | Path) -> str:
    """Why nothing can be written where a folder is or will be, by trying; empty: it can."""
    try:
        with tempfile.TemporaryFile(dir=_there(folder)) as file:
            file.write(bytes(_PROBED))
            file.flush()
    except OSError as error:
        return error.strerror or str(error)
    return ""


def replace_file(path: Path, content: bytes) -> None:
    """Write a file whole or not at all: beside its place first, then renamed.

    It is not synced: after a crash of the machine the file may be the one before.

    Raises:
        OSError: it was not written; the one before is still there.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_bytes(content)
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise


def free_bytes(folder: str | Path) -> int:
    """Bytes that are free where a folder is or will be."""
    return shutil.disk_usage(_there(folder)).free


def _there(folder: str | Path) -> Path:
    path = Path(folder).absolute()
    return next(one for one in (path, *path.parents) if one.exists())
