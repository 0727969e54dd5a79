"""Memory that other processes of the same node can map.

A buffer is an anonymous file: it has no name that could be left behind, and goes with the
last process that maps it. Others open it through the owner's entry in /proc, which the
kernel allows to processes of the same user.
"""

import fcntl
import mmap
import os
import threading
from collections import deque
from dataclasses import replace
from pathlib import Path

import torch
from cachetools import LRUCache
from torch import Tensor

from services.protocol.weights.place import Place
from services.transport.pinned_memory import pin

_MAPPINGS_KEPT = 3
"""Buffers in which the ranks of a node write versions by turns."""

_SERIAL_BYTES = 8
"""At the end of each buffer."""


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
        size = nbytes + _SERIAL_BYTES
        self._fd = os.memfd_create("millrace", os.MFD_CLOEXEC)
        try:
            os.ftruncate(self._fd, size)
            self._map = mmap.mmap(self._fd, size)
            self._inode = os.fstat(self._fd).st_ino
        except BaseException:
            os.close(self._fd)
            raise
        self._serial = 0
        self.bytes = torch.frombuffer(self._map, dtype=torch.uint8)[:nbytes]

    def place(self, offset: int) -> Place:
        """Where the byte at `offset` lies."""
        return Place(
            pid=os.getpid(), fd=self._fd, inode=self._inode, offset=offset, serial=self._serial
        )

    def begin_writing(self) -> bool:
        """Give the buffer a new serial, unless a `HeldBuffer` holds it; returns whether it did."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        self._serial += 1
        self._map[-_SERIAL_BYTES:] = self._serial.to_bytes(_SERIAL_BYTES, "little")
        fcntl.flock(self._fd, fcntl.LOCK_UN)
        return True

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
        """A buffer of this size that nobody uses, with a new serial."""
        while self._spare:
            try:
                spare = self._spare.pop()
            except IndexError:
                break  # another thread was faster
            if len(spare.bytes) == nbytes and spare.begin_writing():
                return spare
        fresh = SharedBuffer(nbytes)
        fresh.begin_writing()
        return fresh

    def give(self, buffer: SharedBuffer) -> None:
        """Return a buffer that this process no longer uses; one spare buffer is kept."""
        self._spare.append(buffer)


class MappedBuffer:
    """Bytes of a buffer that another process owns.

    Attributes:
        bytes: uint8, all of it; only trainer ranks write to it, each to its own part.
        is_pinned: CUDA has registered it.
    """

    def __init__(self, place: Place) -> None:
        """Map what lies at `place`.

        Raises:
            OSError: the process is gone, or this one may not read it.
            ValueError: the buffer is gone.
        """
        fd = _opened(place)
        try:
            self.bytes = _mapped(fd)[:-_SERIAL_BYTES]
        finally:
            os.close(fd)
        self.is_pinned = self._pin_begun = False

    def pin(self, gpu: torch.device) -> None:
        """Have CUDA register it once, in a thread: that takes seconds where a version is large."""
        if not self._pin_begun:
            self._pin_begun = True
            threading.Thread(target=self._pin, args=(gpu,), name="pin", daemon=True).start()

    def _pin(self, gpu: torch.device) -> None:
        self.is_pinned = pin(self, gpu) == 0


class HeldBuffer:
    """A buffer of another process that nobody writes over as long as this object lives.

    The hold is a shared lock of the file, for which its owner asks the kernel before it writes.
    The kernel ends it with this process, so a process that dies holds nothing.

    Attributes:
        bytes: uint8, all of it.
    """

    def __init__(self, place: Place) -> None:
        """Hold what lies at `place`.

        Raises:
            OSError: the process is gone, or this one may not read it, or the buffer is just about
                to be written.
            ValueError: the buffer is gone, or was written again.
        """
        self._fd = _opened(place)
        self._place = place
        fcntl.flock(self._fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        mapped = _mapped(self._fd)
        serial = mapped[-_SERIAL_BYTES:].numpy().tobytes()
        if int.from_bytes(serial, "little") != place.serial:
            raise ValueError(f"the buffer at {place} was written again")
        self.bytes = mapped[:-_SERIAL_BYTES]

    def place(self, offset: int) -> Place:
        """Where other processes find the byte at `offset`, whatever becomes of the owner."""
        return replace(self._place, pid=os.getpid(), fd=self._fd, offset=offset)

    @property
    def inode(self) -> int:
        """Of its file, which all who hold it have in common."""
        return self._place.inode

    def __del__(self) -> None:
        """End the hold; tensors of the bytes keep the memory itself."""
        fd = getattr(self, "_fd", -1)
        if fd >= 0:
            os.close(fd)


class Mappings:
    """The buffers of other processes that this one has mapped and used last."""

    def __init__(self, kept: int = _MAPPINGS_KEPT, *, gpu: torch.device | None = None) -> None:
        """`gpu` is the one that copies from them; None: none does."""
        self._gpu = gpu
        self._mapped: LRUCache[int, MappedBuffer] = LRUCache(kept)

    def read(self, place: Place, nbytes: int) -> Tensor:
        """Bytes of another process: uint8, not to be written to.

        Raises:
            OSError: the process is gone, or this one may not read it.
            ValueError: the bytes are not there any more.
        """
        whole = self.buffer(place).bytes
        if place.offset + nbytes > len(whole):
            raise ValueError(f"{nbytes} bytes at {place} end after the buffer's {len(whole)}")
        return whole[place.offset : place.offset + nbytes]

    def is_pageable(self, place: Place) -> bool:
        """Whether the GPU copies slowly from a place, for CUDA has not registered it (yet)."""
        mapped = self._mapped.get(place.inode)
        return self._gpu is not None and mapped is not None and not mapped.is_pinned

    def pin(self) -> None:
        """Have CUDA register what is mapped, for the next time that it is used."""
        if self._gpu is not None:
            for one in self._mapped.values():
                one.pin(self._gpu)

    def buffer(self, place: Place) -> MappedBuffer:
        """The buffer around a place, mapped.

        Raises:
            OSError, ValueError: see `read`.
        """
        if not place.serial:
            self._keep_only(place.inode)
        mapped = self._mapped.get(place.inode)
        if mapped is None:
            mapped = self._mapped[place.inode] = MappedBuffer(place)
        return mapped

    def _keep_only(self, inode: int) -> None:
        """Memory that is not written again and again would only be kept from the system."""
        for other in set(self._mapped) - {inode}:
            del self._mapped[other]


def _opened(place: Place) -> int:
    fd = os.open(f"/proc/{place.pid}/fd/{place.fd}", os.O_RDWR | os.O_CLOEXEC)
    if os.fstat(fd).st_ino != place.inode:
        os.close(fd)
        raise ValueError(f"the buffer at {place} is gone")
    return fd


def _mapped(fd: int) -> Tensor:
    # Writable, as torch knows no other tensors.
    return torch.frombuffer(mmap.mmap(fd, 0), dtype=torch.uint8)
