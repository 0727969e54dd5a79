"""A folder below the temporary folder that is removed after its process, even a killed one.

The process holds a lock on the folder for as long as it lives. A new folder's process removes the
folders that no process holds any more.
"""

import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path

_LOCK_GRACE_S = 60.0
"""Far longer than a process takes to lock a folder that it has made."""


class ScratchFolder:
    """A new folder; removed by `remove`.

    Args:
        prefix: of its name; this user's folders with the same prefix are removed if unlocked.
    """

    def __init__(self, prefix: str) -> None:
        _remove_abandoned(prefix)
        self.path = Path(tempfile.mkdtemp(prefix=prefix))
        self._lock = _lock(self.path)

    def remove(self) -> None:
        """Remove it with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _remove_abandoned(prefix: str) -> None:
    for path in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        try:
            found = path.lstat()
        except OSError:
            continue  # it went meanwhile
        if found.st_uid != os.geteuid() or time.time() - found.st_mtime < _LOCK_GRACE_S:
            continue
        if (lock := _lock(path)) is not None:
            shutil.rmtree(path, ignore_errors=True)
            os.close(lock)


def _lock(path: Path) -> int | None:
    """A descriptor that holds the folder; None if another one does, or if it is none."""
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(folder)
        return None
    return folder
