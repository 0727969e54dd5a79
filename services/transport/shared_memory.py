"""Memory that other processes of the same node can map.

A buffer is an anonymous file: it has no name that could be left behind, and goes with the
last process that maps it. Others open it through the owner's entry in /proc, which the
kernel allows to processes of the same user.
"""

import mmap
import os
from collections import deque
from pathlib import Path

import torch
from cachetools import LRUCache
from torch import Tensor

from services.protocol.weights.place import Place
from services.transport.pinned_memory import pin

_MAPPINGS_KEPT = 8


def memory_domain() -> str:
    """Name of the set of processes that can reach each other's memory: this boot of this
    machine, seen through the same process table, as the same user."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{os.readlink('/proc/self/ns/pid')}/{os.getuid()}"


class SharedBuffer:
    """Bytes of this process that others can map.

    Attributes:
        bytes: uint8, all of it, writable by this process.
    """

    def __init__(self, nbytes: int) -> None:
        self._fd = os.memfd_create("millrace", os.MFD_CLOEXEC)
        try:
            os.ftruncate(self._fd, max(nbytes, 1))
            self._map = mmap.mmap(self._fd, max(nbytes, 1))
            self._inode = os.fstat(self._fd).st_ino
        except BaseException:
            os.close(self._fd)
            raise
        self.bytes = torch.frombuffer(self._map, dtype=torch.uint8)[:nbytes]

    def place(self, offset: int) -> Place:
        """Where the byte at `offset` lies."""
        return Place(pid=os.getpid(), fd=self._fd, inode=self._inode, offset=offset)

    def __del__(self) -> None:
        """Close the file; tensors of its bytes keep the memory itself."""
        fd = getattr(self, "_fd", -1)
        if fd >= 0:
            os.close(fd)


class BufferPool:
    """Buffers of one size that are used again: touching fresh memory costs more than a copy.

    `give` may be called by whichever thread drops the last user of a buffer, in the middle
    of anything, so nothing here takes a lock.
    """

    def __init__(self) -> None:
        self._spare: deque[SharedBuffer] = deque(maxlen=1)

    def take(self, nbytes: int) -> SharedBuffer:
        """A buffer of this size that is not in use."""
        while self._spare:
            try:
                spare = self._spare.pop()
            except IndexError:
                break  # another thread was faster
            if len(spare.bytes) == nbytes:
                return spare
        return SharedBuffer(nbytes)

    def give(self, buffer: SharedBuffer) -> None:
        """Return a buffer that is no longer in use; one spare buffer is kept."""
        self._spare.append(buffer)


class MappedBuffer:
    """Bytes of a buffer that another process owns.

    Attributes:
        bytes: uint8, all of it, not to be written to.
        pin_error: why CUDA did not register it, as `cudaError_t`; 0: it did, or was not asked.
    """

    def __init__(self, place: Place) -> None:
        """Map what lies at `place`.

        Raises:
            OSError: the process is gone, or this one may not read it.
            ValueError: the buffer is gone.
        """
        fd = os.open(f"/proc/{place.pid}/fd/{place.fd}", os.O_RDWR | os.O_CLOEXEC)
        try:
            if os.fstat(fd).st_ino != place.inode:
                raise ValueError(f"the buffer at {place} is gone")
            # Writable only because torch knows no other tensors.
            self.bytes = torch.frombuffer(mmap.mmap(fd, 0), dtype=torch.uint8)
        finally:
            os.close(fd)
        self.pin_error = 0


class Mappings:
    """The buffers of other processes that this one has mapped and used last."""

    def __init__(self, kept: int = _MAPPINGS_KEPT, *, gpu: torch.device | None = None) -> None:
        """`gpu` is the one that copies from them; None: none does."""
        self._gpu = gpu
        self._mapped: LRUCache[tuple[int, int, int], MappedBuffer] = LRUCache(kept)

    def read(self, place: Place, nbytes: int) -> Tensor:
        """Bytes of another process: uint8, not to be written to.

        Raises:
            OSError: the process is gone, or this one may not read it.
            ValueError: the bytes are not there any more.
        """
        whole = self._map(place).bytes
        if place.offset + nbytes > len(whole):
            raise ValueError(f"{nbytes} bytes at {place} end after the buffer's {len(whole)}")
        return whole[place.offset : place.offset + nbytes]

    @property
    def pin_error(self) -> int:
        """Of a buffer that is mapped; 0: all are as fast as they can be."""
        return max((one.pin_error for one in self._mapped.values()), default=0)

    def _map(self, place: Place) -> MappedBuffer:
        key = place.pid, place.fd, place.inode
        mapped = self._mapped.get(key)
        if mapped is None:
            # Another one may go for it, and is pinned no more before this one is.
            mapped = self._mapped[key] = MappedBuffer(place)
            if self._gpu is not None:
                mapped.pin_error = pin(mapped, self._gpu)
        return mapped
