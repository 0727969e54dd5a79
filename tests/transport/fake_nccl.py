"""CUDA and NCCL as links meet them, with Gloo and host memory in their place.

As there: the current device belongs to a thread and is 0 in a new one; members of a communicator
must have different GPUs, which shows when it is first used; torch's watchdog ends the process when
a transfer takes longer than its group's time-out, unless the group was made without.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import torch
from torch.distributed import PrefixStore, ProcessGroupGloo  # type: ignore[attr-defined]

from services.transport.gloo import gloo_options

HOST = "127.0.0.1"


class FakeCuda:
    """In the place of `torch.cuda`."""

    def __init__(self) -> None:
        self._local = threading.local()
        self.owners: dict[int, torch.device] = {}

    def current_device(self) -> int:
        return getattr(self._local, "index", 0)

    @contextmanager
    def device(self, device: torch.device) -> Iterator[None]:
        before, self._local.index = self.current_device(), device.index
        try:
            yield
        finally:
            self._local.index = before

    def Stream(self, device: torch.device) -> torch.device:
        assert device.index == self.current_device(), "a stream of another device than the current"
        return device

    @contextmanager
    def stream(self, stream: torch.device) -> Iterator[None]:
        assert stream.index == self.current_device(), "a stream of another device than the current"
        yield

    def empty_bytes(self, count: int, device: torch.device) -> torch.Tensor:
        made = torch.empty(count, dtype=torch.uint8)
        self.owners[made.data_ptr()] = device
        return made


class FakeNccl:
    """In the place of `torch.distributed`: makes groups, and knows what became of processes.

    Attributes:
        ended: members whose process torch's watchdog has ended.
        hangs: transfers never end.
    """

    def __init__(self, cuda: FakeCuda) -> None:
        self._cuda = cuda
        self.ended: list[int] = []
        self.hangs = False
        self.made: list[_Group] = []

    def ProcessGroupNCCL(self, store: Any, member: int, size: int, options: Any) -> "_Group":
        self.made.append(_Group(self, self._cuda, (store, member, size), options))
        return self.made[-1]

    ProcessGroupNCCL.Options = lambda: SimpleNamespace(  # type: ignore[attr-defined]
        _timeout=timedelta(minutes=10), config=SimpleNamespace(blocking=1)
    )


class _Group:
    def __init__(self, nccl: FakeNccl, cuda: FakeCuda, place: Any, options: Any) -> None:
        self._nccl, self._cuda, self.options = nccl, cuda, options
        self._store, self._member, self._size = place
        self._watches = os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "3") != "0"
        self._gloo: Any = None
        self.connects_for = ""
        self.aborted = threading.Event()

    def broadcast(self, tensors: list[torch.Tensor], options: Any) -> Any:
        (tensor,) = tensors
        if self._gloo is None:
            self._connect(self._cuda.owners[tensor.data_ptr()])
        if self._nccl.hangs:
            timer = threading.Timer(self.options._timeout.total_seconds(), self._time_out)
            timer.daemon = True
            timer.start()
            return SimpleNamespace(is_completed=lambda: False)
        return self._gloo.broadcast(tensors, options)

    def abort(self) -> None:
        self.aborted.set()

    def _connect(self, device: torch.device) -> None:
        self.connects_for = os.environ.get("TORCH_NCCL_NONBLOCKING_TIMEOUT", "1800")
        # The sender is on another node, whose GPUs are numbered from 0 as well.
        node = "trainer" if self._member == 0 else "engine"
        self._store.set(f"gpu/{self._member}", f"{node}:{device.index}")
        gpus = [self._store.get(f"gpu/{member}") for member in range(self._size)]
        if len(set(gpus)) < len(gpus):
            raise RuntimeError(
                "NCCL error in: NCCLUtils.cpp:210, invalid usage\nncclInvalidUsage\n"
                f"Last error:\nDuplicate GPU detected: {gpus}"
            )
        place = PrefixStore("gloo", self._store)
        group = gloo_options(HOST, timedelta(seconds=60))
        self._gloo = ProcessGroupGloo(place, self._member, self._size, group)

    def _time_out(self) -> None:
        if self._watches and not self.aborted.is_set():
            self._nccl.ended.append(self._member)
