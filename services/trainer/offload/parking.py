"""The state of a rank off its device while others use it, and back.

Storages are emptied and filled again behind the tensors, so nobody who holds one notices: neither
FSDP nor the optimizer. From a GPU bytes go to pinned host memory; where the ranks compute on CPUs
they go to a file without a name, or memory would not be given back.
"""

import ctypes
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Protocol

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from services.trainer.heartbeat import HEARTBEAT

PIECE = 64 << 20
"""Bytes between two signs of life."""

_libc = ctypes.CDLL(None)
_ON_DISK = Path("/var/tmp")  # unlike /tmp never in memory


class _Store(Protocol):
    """Where bytes wait."""

    def keep(self, content: Tensor) -> None:
        """Copy bytes, `[N]` uint8 on the device, behind those before."""

    def restore(self, content: Tensor) -> None:
        """Copy the bytes of the same `keep` back; in the order of the calls."""


class Parking:
    """Parks tensors of one rank; used by its torch thread.

    Args:
        device: where the rank computes.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._store: _Store | None = None
        self._parked: list[tuple[torch.UntypedStorage, int]] = []

    def park(self, tensors: Iterable[Tensor]) -> int:
        """Move what the tensors hold off the device; returns its bytes. They are empty until
        `unpark`. Storages that cannot be emptied stay, and so do tensors on other devices.

        Raises:
            OSError: the disk is full, where the ranks compute on CPUs; nothing has moved.
        """
        self.unpark()
        storages = list(self._storages(tensors))
        store = _PinnedMemory() if self._device.type == "cuda" else _File()
        for storage in storages:
            store.keep(_bytes(storage, self._device))
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        self._store, self._parked = store, [(one, one.nbytes()) for one in storages]
        for storage in storages:
            storage.resize_(0)
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        elif hasattr(_libc, "malloc_trim"):
            _libc.malloc_trim(0)  # blocks below 32 MiB would stay with the C library
        return sum(nbytes for _, nbytes in self._parked)

    def unpark(self) -> None:
        """Bring everything back; does nothing when nothing is parked."""
        store, parked = self._store, self._parked
        if store is None:
            return
        for storage, nbytes in parked:
            storage.resize_(nbytes)
            store.restore(_bytes(storage, self._device))
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        self._store, self._parked = None, []

    def _storages(self, tensors: Iterable[Tensor]) -> Iterator[torch.UntypedStorage]:
        seen = set()
        for tensor in tensors:
            for plain in _plain(tensor):
                storage = plain.untyped_storage()
                own = storage.device.type == self._device.type and storage.resizable()
                if own and storage.nbytes() and storage._cdata not in seen:
                    seen.add(storage._cdata)
                    yield storage


class _PinnedMemory:
    """See `_Store`; torch keeps the memory for the next turn."""

    def __init__(self) -> None:
        self._held: list[Tensor] = []
        self._next = 0

    def keep(self, content: Tensor) -> None:
        HEARTBEAT.mark()
        held = torch.empty(content.shape, dtype=torch.uint8, pin_memory=True)
        self._held.append(held.copy_(content, non_blocking=True))

    def restore(self, content: Tensor) -> None:
        HEARTBEAT.mark()
        content.copy_(self._held[self._next], non_blocking=True)
        self._next += 1


class _File:
    """See `_Store`."""

    def __init__(self) -> None:
        folder = _ON_DISK if _ON_DISK.is_dir() else None
        self._file: IO[bytes] = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115
        self._rewound = False

    def keep(self, content: Tensor) -> None:
        for piece in content.split(PIECE):
            HEARTBEAT.mark()
            left = _memory(piece)
            while left:
                left = left[self._file.write(left) :]

    def restore(self, content: Tensor) -> None:
        if not self._rewound:
            self._file.seek(0)
            self._rewound = True
        for piece in content.split(PIECE):
            HEARTBEAT.mark()
            left = _memory(piece)
            while left:
                read = self._file.readinto(left)  # type: ignore[attr-defined]
                if not read:
                    raise EOFError("the file of the rank's parked state is too short")
                left = left[read:]


def _bytes(storage: torch.UntypedStorage, device: torch.device) -> Tensor:
    """A storage as `[N]` uint8."""
    return torch.empty(0, dtype=torch.uint8, device=device).set_(storage)  # type: ignore[call-overload]


def _memory(content: Tensor) -> memoryview:
    """The memory of `[N]` uint8 on the CPU; torch's own `numpy` would make it unresizable."""
    array = (ctypes.c_char * content.nbytes).from_address(content.data_ptr())
    return memoryview(array).cast("B")


@torch.no_grad()
def _plain(tensor: Tensor) -> Iterator[Tensor]:
    """What a DTensor or a quantised tensor consists of; a plain tensor itself."""
    if isinstance(tensor, DTensor):
        yield from _plain(tensor.to_local())
    elif is_traceable_wrapper_subclass(tensor):
        names, _ = tensor.__tensor_flatten__()
        for name in names:
            yield from _plain(getattr(tensor, name))
    else:
        yield tensor
