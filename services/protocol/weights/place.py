"""Where bytes lie that another process of the same node can map."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Place:
    """The address of bytes in another process.

    Attributes:
        pid: process that owns them, as its own process table numbers it.
        fd: its file descriptor.
        inode: of the file; tells a descriptor that was closed and given to another file.
        offset: first byte.
        serial: which writing of that memory is meant; 0: its owner does not write there again
            while it says that the bytes lie there.
    """

    pid: int
    fd: int
    inode: int
    offset: int
    serial: int = 0
