"""Memory of another process that a GPU reads, on a fake of CUDA's register."""

import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from services.transport.shared_memory import Mappings, SharedBuffer

from .fake_host_memory import NO_MEMORY, FakeHostMemory

SIZE = 8192
GPU = torch.device("cuda", 3)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeHostMemory:
    return FakeHostMemory(monkeypatch)


def pin(mappings: Mappings) -> None:
    """Wait for the threads, too."""
    mappings.pin()
    for thread in threading.enumerate():
        if thread.name == "pin":
            thread.join()


def test_a_mapped_buffer_is_registered_once_with_the_workers_own_gpu(cuda: FakeHostMemory) -> None:
    buffer, mappings = SharedBuffer(SIZE), Mappings(kept=1, gpu=GPU)
    for offset in (0, 64):
        read = mappings.read(buffer.place(offset), 100)
        assert mappings.is_pageable(buffer.place(offset)) == (offset == 0)
        pin(mappings)
    assert cuda.registered == {read.data_ptr() - 64: (SIZE, GPU.index)}
    assert cuda.errors == []


def test_each_range_ends_once_and_before_it_is_unmapped(cuda: FakeHostMemory) -> None:
    """Whichever thread drops it: the fake refuses to end one that is gone, or on another GPU."""
    buffers, mappings = [SharedBuffer(SIZE) for _ in range(3)], Mappings(kept=1, gpu=GPU)
    begun: list[int] = []
    with ThreadPoolExecutor(1) as thread:
        for buffer in buffers:
            begun.append(thread.submit(mappings.read, buffer.place(0), SIZE).result().data_ptr())
            assert cuda.ended == begun[:-1], "one at a time"
            thread.submit(pin, mappings).result()
            assert list(cuda.registered) == begun[-1:]
    del mappings
    gc.collect()
    assert cuda.ended == begun
    assert (cuda.registered, cuda.errors) == ({}, [])


def test_a_staged_version_that_is_still_read_outlives_its_registration(
    cuda: FakeHostMemory,
) -> None:
    first, second = SharedBuffer(SIZE), SharedBuffer(SIZE)
    first.bytes.fill_(7)
    mappings = Mappings(kept=1, gpu=GPU)
    view = mappings.read(first.place(0), SIZE)[100:200]
    pin(mappings)
    mappings.read(second.place(0), SIZE)
    assert len(cuda.ended) == 1
    assert view.eq(7).all()


def test_memory_that_cuda_refuses_is_read_all_the_same_and_reported(cuda: FakeHostMemory) -> None:
    cuda.refuses = True
    buffer, mappings = SharedBuffer(SIZE), Mappings(kept=1, gpu=GPU)
    buffer.bytes.fill_(5)
    assert mappings.read(buffer.place(0), SIZE).eq(5).all()
    for _ in range(2):
        pin(mappings)
    assert mappings.is_pageable(buffer.place(0))
    assert cuda.last_error == 0, "the engine's next kernel would seem to have failed"
    del mappings
    gc.collect()
    assert cuda.errors == [NO_MEMORY], "nothing was to be ended"


def test_nothing_is_registered_without_a_gpu(cuda: FakeHostMemory) -> None:
    buffer, mappings = SharedBuffer(SIZE), Mappings()
    mappings.read(buffer.place(0), SIZE)
    pin(mappings)
    assert cuda.registered == {}
    assert not mappings.is_pageable(buffer.place(0))
