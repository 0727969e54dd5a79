"""CUDA's register of host memory, which minds what CUDA minds, on a machine without one."""

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from services.transport import pinned_memory

from .fake_nccl import FakeCuda

ALREADY, NOT_REGISTERED, NO_MEMORY = 712, 713, 2


class FakeHostMemory(FakeCuda):
    """In the place of `torch.cuda`.

    Attributes:
        registered: bytes by address, and the device that was current.
        ended: addresses that were registered, in the order in which that ended.
        errors: what CUDA refused.
        refuses: it has no memory left for the pages.
        gate: registering takes until it is set.
        last_error: what it would say after the next kernel.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.registered: dict[int, tuple[int, int]] = {}
        self.ended: list[int] = []
        self.errors: list[int] = []
        self.refuses = False
        self.gate = threading.Event()
        self.gate.set()
        self.last_error = 0
        patch.setattr(pinned_memory, "torch", self._torch())

    def _torch(self) -> SimpleNamespace:
        return SimpleNamespace(cuda=self, device=torch.device, zeros=self._kernel)

    def cudart(self) -> Any:
        return self

    def cudaHostRegister(self, address: int, nbytes: int, flags: int) -> int:
        assert flags == 0
        self.gate.wait()
        assert _is_mapped(address, nbytes)
        if self.refuses:
            return self._fail(NO_MEMORY)
        for start, (size, _) in self.registered.items():
            if start < address + nbytes and address < start + size:
                return self._fail(ALREADY)
        self.registered[address] = nbytes, self.current_device()
        return 0

    def cudaHostUnregister(self, address: int) -> int:
        found = self.registered.pop(address, None)
        if found is None:
            return self._fail(NOT_REGISTERED)
        nbytes, device = found
        assert _is_mapped(address, nbytes), "the memory went first"
        assert device == self.current_device(), "registered with another device"
        self.ended.append(address)
        return 0

    def _fail(self, code: int) -> int:
        self.errors.append(code)
        self.last_error = code
        return code

    def _kernel(self, *sizes: int, device: str) -> None:
        """Any work on the device: torch asks for the last error behind it."""
        assert device == "cuda"
        error, self.last_error = self.last_error, 0
        if error:
            raise RuntimeError(f"CUDA error {error}")


def _is_mapped(address: int, nbytes: int) -> bool:
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, _, last = line.split()[0].partition("-")
        if int(first, 16) <= address and address + nbytes <= int(last, 16):
            return True
    return False
