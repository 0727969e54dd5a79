"""What compilers made, kept for later in a folder that no other user can write to."""

import os
import stat
from contextlib import suppress
from pathlib import Path

from blake3 import blake3

from services.observability.log import Log

_log = Log("reward_service")

HEADERS_MB = 1024
"""For compiled headers, and for what slots load."""
_DIGEST_BYTES = 32
_MAX_FILES = 4096
"""Small programs reach it before the bound in MiB; the folder is read whenever one is added."""


class BuildCache:
    """Headers or programs, by a digest of what they were made of: compiler, flags and source.

    A changed one could change what a right answer does. So the folder must belong to this user
    and be closed to all others, a file must be the user's own and no link, and its content must
    have the digest that it begins with. What fails any of this is not used.

    Args:
        folder: made if it does not exist.
        max_mb: MiB of files; beyond it those go that were not used for longest.
    """

    def __init__(self, folder: str | Path, *, max_mb: int) -> None:
        self._folder = Path(folder).expanduser()
        self._max_bytes = max_mb << 20

    def get(self, name: str) -> bytes | None:
        """A file's content, None if it is not there or not to be trusted."""
        try:
            if not self._is_ours(os.lstat(self._folder), stat.S_IFDIR):
                _log.warning("build_cache_not_private", folder=str(self._folder))
                return None
            descriptor = os.open(self._folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            facts = os.fstat(descriptor)
            if not self._is_ours(facts, stat.S_IFREG):
                return None
            digest = os.pread(descriptor, _DIGEST_BYTES, 0)
            size = max(0, facts.st_size - _DIGEST_BYTES)
            content = os.pread(descriptor, size, _DIGEST_BYTES)
            if blake3(content).digest() != digest:
                return None
            with suppress(OSError):
                os.utime(descriptor)  # the time of its last use
        finally:
            os.close(descriptor)
        return content

    def put(self, name: str, content: bytes) -> None:
        """Keep a file; a folder that cannot be used is left alone."""
        part = self._folder / f".{name}.{os.getpid()}"
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self._is_ours(os.lstat(self._folder), stat.S_IFDIR):
                return
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(part, flags, 0o600), "wb") as file:
                file.write(blake3(content).digest())
                file.write(content)
            part.rename(self._folder / name)
            self._forget_oldest()
        except OSError as error:
            with suppress(OSError):
                part.unlink()
            _log.warning("build_not_kept", folder=str(self._folder), reason=str(error))

    def _forget_oldest(self) -> None:
        """Keep to the bounds, with what other services put there."""
        found = [(file, file.lstat()) for file in self._folder.iterdir()]
        kept = [(file, facts) for file, facts in found if stat.S_ISREG(facts.st_mode)]
        kept.sort(key=lambda one: one[1].st_mtime_ns, reverse=True)
        taken = 0
        for number, (file, facts) in enumerate(kept):
            taken += facts.st_size
            if taken > self._max_bytes or number >= _MAX_FILES:
                file.unlink(missing_ok=True)

    @staticmethod
    def _is_ours(facts: os.stat_result, kind: int) -> bool:
        private = facts.st_uid == os.geteuid() and not facts.st_mode & 0o077
        return private and stat.S_IFMT(facts.st_mode) == kind
