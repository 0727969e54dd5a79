"""The kind of file system of a path, from the kernel's table of mounts (proc(5), mountinfo)."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Self

MOUNTS = Path("/proc/self/mountinfo")

_LOCAL = re.compile(
    "bcachefs|btrfs|exfat|ext[234]|f2fs|fuseblk|hfsplus|jfs|nilfs2|ntfs3?|overlay|ramfs|reiserfs"
    "|rootfs|tmpfs|vfat|xfs|zfs"
)
_ONE_HOST = {"localflock", "local_lock=all", "local_lock=posix", "nobrl", "nolock"}
"""Options of Lustre, NFS and CIFS with which locks of byte ranges hold on this host only."""
_ESCAPED = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, kw_only=True)
class FileSystem:
    """A mounted file system.

    Attributes:
        kind: by its name in the kernel, such as `ext4`, `nfs4` or `fuse.sshfs`; `unknown` where
            the table of mounts cannot be read.
        mount: the folder at which it is mounted.
        options: of the file system, such as `vers=4.2`.
    """

    kind: str
    mount: str = "/"
    options: frozenset[str] = frozenset()

    @classmethod
    def of(cls, path: str | Path) -> Self:
        """The file system on which a path is, or would be.

        Of mounts at the same folder the last one counts: it covers the others.
        """
        place, found = Path(path).resolve(), cls(kind="unknown")
        try:
            lines = MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        except OSError:
            return found
        for line in lines:
            mounting, _, kind_of = line.partition(" - ")
            mount = _ESCAPED.sub(lambda octal: chr(int(octal[1], 8)), mounting.split()[4])
            if len(mount) >= len(found.mount) and place.is_relative_to(mount):
                kind, *_, options = kind_of.split()
                found = cls(kind=kind, mount=mount, options=frozenset(options.split(",")))
        return found

    @property
    def network(self) -> bool:
        """Whether other hosts may have it mounted, too; of a kind that is not known: yes."""
        return _LOCAL.fullmatch(self.kind) is None

    @property
    def locks_of_one_host(self) -> str:
        """The mount option with which other hosts do not see the locks of this one, else empty."""
        return min(self.options & _ONE_HOST, default="")
