"""A workspace's folder on the host, where it has no file system of its own."""

import contextlib
import os
import time
from pathlib import Path

from services.reward_service.jailed.workspace.files import remove_tree

_BLOCK = 512
_FULL_BYTES = 1 << 20
_ENTRY_BYTES = 1024
"""What an entry counts beside its content, as in a file system in memory."""


class WorkspaceFolder:
    """Made for one workspace and its user; measured, as no kernel limit bounds it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.measured_in_s = 0.0

    def make(self, user_id: int | None) -> None:
        """Make it, for this user alone."""
        self.path.mkdir(mode=0o700)
        if user_id is not None:
            os.chown(self.path, user_id, user_id)

    def used(self) -> int:
        """Bytes that its entries take; entries whose paths are too long to be looked at count as
        more than any workspace may have."""
        started = time.monotonic()
        total, waiting = 0, [str(self.path)]
        while waiting:
            try:
                with os.scandir(waiting.pop()) as entries:
                    for entry in entries:
                        with contextlib.suppress(FileNotFoundError):
                            facts = entry.stat(follow_symlinks=False)
                            total += _BLOCK * facts.st_blocks + _ENTRY_BYTES
                            if entry.is_dir(follow_symlinks=False):
                                waiting.append(entry.path)
            except FileNotFoundError:  # it went meanwhile
                continue
            except PermissionError:  # an ordinary user's own folder, closed to its owner
                continue
            except OSError:  # ENAMETOOLONG, or a tree that cannot be walked
                return 1 << 62
        self.measured_in_s = time.monotonic() - started
        return total

    def node_is_full(self) -> bool:
        """Whether the file system that all workspaces share has no space."""
        facts = os.statvfs(self.path)
        return facts.f_bavail * facts.f_frsize < _FULL_BYTES or facts.f_favail == 0

    def remove(self) -> None:
        """Remove it with all that is in it; no process may be using it any more."""
        parent = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with contextlib.suppress(FileNotFoundError):
                remove_tree(parent, self.path.name)
        finally:
            os.close(parent)
