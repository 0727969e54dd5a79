"""Host memory registered with CUDA: the device copies from and to it by itself, at full speed.

Without, copies are right but slow: CUDA passes them through memory of its own.
"""

import contextlib
import weakref
from typing import Protocol

import torch
from torch import Tensor

from services.observability.log import Log

log = Log("transport")


class Buffer(Protocol):
    """Memory that goes when its owner does, or later."""

    @property
    def bytes(self) -> Tensor:
        """uint8, all of it."""


def pin(buffer: Buffer, device: torch.device | None = None) -> int:
    """Register a buffer for as long as it lives.

    Args:
        buffer: in this process; may be memory of another one that is mapped here.
        device: the GPU that copies; None: the current one of this thread.

    Returns:
        0, or why CUDA refuses, as `cudaError_t`; that is logged.
    """
    address, nbytes = buffer.bytes.data_ptr(), buffer.bytes.nbytes
    if not nbytes:
        return 0
    with _current(device):
        code = int(torch.cuda.cudart().cudaHostRegister(address, nbytes, 0))
        if code:
            _forget_error()
    if code:
        log.warning("memory not pinned", bytes=nbytes, cuda_error=code)
        return code
    # It runs before the buffer's own memory goes; at the process's end CUDA may be gone before.
    weakref.finalize(buffer, _unpin, address, device).atexit = False
    return 0


def _forget_error() -> None:
    """CUDA would tell torch of it after the next kernel, as if that had failed."""
    with contextlib.suppress(RuntimeError):
        torch.zeros(1, device="cuda")


def _unpin(address: int, device: torch.device | None) -> None:
    with _current(device):  # memory may be dropped by a thread with another one
        torch.cuda.cudart().cudaHostUnregister(address)


def _current(device: torch.device | None) -> contextlib.AbstractContextManager[object]:
    return contextlib.nullcontext() if device is None else torch.cuda.device(device)
