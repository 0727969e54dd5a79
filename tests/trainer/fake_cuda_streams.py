"""CUDA streams as copies meet them: work that is asked for runs later, in its stream's order.

In the place of a device, tensors in host memory. What is enqueued on a stream runs when somebody
waits for it, so that a weight which changes too early is copied with the change, as on a GPU.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor


class FakeStream:
    """Work in order; `run` does what is due."""

    def __init__(self) -> None:
        self.work: list[Callable[[], object]] = []

    def wait_stream(self, other: "FakeStream") -> None:
        self.work.append(other.run)

    def wait_event(self, event: "FakeEvent") -> None:
        self.work.append(event.synchronize)

    def run(self, until: int | None = None) -> None:
        due, self.work = self.work[:until], self.work[len(self.work[:until]) :]
        for one in due:
            one()


class FakeEvent:
    """A point in a stream."""

    def __init__(self, blocking: bool = False) -> None:
        assert blocking, "a thread that waits for an event must not spin"
        self._passed: list[bool] = []
        self._stream: FakeStream | None = None

    def record(self, stream: FakeStream) -> None:
        self._stream = stream
        stream.work.append(lambda: self._passed.append(True))

    def synchronize(self) -> None:
        while not self._passed:
            assert self._stream is not None, "never recorded"
            self._stream.run(until=1)


class FakeCuda:
    """In the place of `torch.cuda`.

    Attributes:
        registered: addresses and bytes of pinned memory.
        unregistered: addresses that are pinned no more.
        refuses: `cudaHostRegister` fails.
    """

    Stream, Event = FakeStream, FakeEvent

    def __init__(self) -> None:
        self.main = self._current = FakeStream()
        self.registered: list[tuple[int, int]] = []
        self.unregistered: list[int] = []
        self.refuses = False

    def current_stream(self) -> FakeStream:
        return self._current

    @contextmanager
    def stream(self, stream: FakeStream) -> Iterator[None]:
        before, self._current = self._current, stream
        try:
            yield
        finally:
            self._current = before

    def cudart(self) -> Any:
        return self

    def cudaHostRegister(self, address: int, nbytes: int, flags: int) -> int:
        if self.refuses:
            return 2  # cudaErrorMemoryAllocation
        self.registered.append((address, nbytes))
        return 0

    def cudaHostUnregister(self, address: int) -> int:
        self.unregistered.append(address)
        return 0


class OnDevice:
    """A shard of a fake device: whatever is asked of it goes to the current stream."""

    is_cuda = True

    def __init__(self, cuda: FakeCuda, values: Tensor) -> None:
        self.cuda, self.values = cuda, values

    def reshape(self, *shape: int) -> "OnDevice":
        return OnDevice(self.cuda, self.values.reshape(*shape))

    def split(self, size: int | list[int]) -> "list[OnDevice]":
        return [OnDevice(self.cuda, one) for one in self.values.split(size)]

    def to(self, dtype: torch.dtype) -> "OnDevice":
        if dtype == self.values.dtype:
            return self
        made = OnDevice(self.cuda, torch.empty(self.values.shape, dtype=dtype))
        self._enqueue(lambda: made.values.copy_(self.values))
        return made

    def add(self, change: float) -> None:
        self._enqueue(lambda: self.values.add_(change))

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        target, source = args
        assert function is Tensor.copy_, f"{function} of a shard on a device"
        assert kwargs == {"non_blocking": True}, "the training thread would wait for the copy"
        source._enqueue(lambda: target.copy_(source.values))
        return target

    def _enqueue(self, work: Callable[[], object]) -> None:
        self.cuda.current_stream().work.append(work)
