"""Precompiled headers that outlive a process, in a folder that no other user can write to."""

import hashlib
import os
import stat
from contextlib import suppress
from pathlib import Path

from services.observability.log import Log

_log = Log("reward_service")

_DIGEST_BYTES = 32
_MAX_HEADERS = 8


class HeaderCache:
    """Headers by what they were made of: compiler, flags and source.

    A changed header could change what a right program does. So the folder must belong to this user
    and be closed to all others, a file must be the user's own and no link, and its content must
    have the digest that it begins with. A header that fails any of this is not used.

    Args:
        folder: made if it does not exist.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder).expanduser()

    def get(self, name: str) -> bytes | None:
        """A header, None if it is not there or not to be trusted."""
        try:
            if not self._is_ours(os.lstat(self._folder), stat.S_IFDIR):
                _log.warning("header_cache_not_private", folder=str(self._folder))
                return None
            descriptor = os.open(self._folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return None
        with open(descriptor, "rb") as file:
            if not self._is_ours(os.fstat(descriptor), stat.S_IFREG):
                return None
            digest, content = file.read(_DIGEST_BYTES), file.read()
        return content if hashlib.sha256(content).digest() == digest else None

    def put(self, name: str, content: bytes) -> None:
        """Keep a header; a folder that cannot be used is left alone."""
        part = self._folder / f".{name}.{os.getpid()}"
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not self._is_ours(os.lstat(self._folder), stat.S_IFDIR):
                return
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(part, flags, 0o600), "wb") as file:
                file.write(hashlib.sha256(content).digest())
                file.write(content)
            part.rename(self._folder / name)
            self._forget_oldest()
        except OSError as error:
            with suppress(OSError):
                part.unlink()
            _log.warning("header_not_kept", folder=str(self._folder), reason=str(error))

    def _forget_oldest(self) -> None:
        """A header is a hundred megabytes, and every version of a compiler makes new ones."""
        kept = sorted(self._folder.iterdir(), key=lambda file: file.lstat().st_mtime)
        for file in kept[:-_MAX_HEADERS]:
            file.unlink()

    @staticmethod
    def _is_ours(facts: os.stat_result, kind: int) -> bool:
        private = facts.st_uid == os.geteuid() and not facts.st_mode & 0o077
        return private and stat.S_IFMT(facts.st_mode) == kind
