"""The memory of another process, registered with a real CUDA for as long as it is mapped."""

import threading

import pytest
import torch

from services.transport.pinned_memory import pin
from services.transport.shared_memory import MappedBuffer, Mappings, SharedBuffer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

SIZE = 64 << 20
GPU = torch.device("cuda", 0)


def test_a_mapped_version_is_pinned_until_another_takes_its_place() -> None:
    first, second = SharedBuffer(SIZE), SharedBuffer(SIZE)
    first.bytes.fill_(3)
    mappings = Mappings(kept=1, gpu=GPU)
    view = mappings.read(first.place(0), SIZE)
    mappings.pin()
    for thread in threading.enumerate():
        if thread.name == "pin":
            thread.join()
    assert view.is_pinned()
    assert view.to(GPU).eq(3).all()
    mappings.read(second.place(0), SIZE)
    assert not view.is_pinned()


def test_a_refusal_is_a_code_and_fails_no_later_kernel() -> None:
    buffer = SharedBuffer(SIZE)
    mapped = MappedBuffer(buffer.place(0))
    assert pin(mapped, GPU) == 0
    assert pin(mapped, GPU) != 0, "it is registered already"
    assert torch.ones(8, device=GPU).sum().item() == 8.0
