"""A device in name only, on which fake tensors can be put where there is no GPU.

A build of torch for CPUs refuses even fake tensors on `cuda` in a backward pass. So the device is
one that torch lets Python make up. A process cannot take it back.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.backend_registration import (
    _DummyBackendModule,
    _setup_privateuseone_for_python_backend,
)

from benchmarks.rank_memory.counter import StorageCounter
from services.trainer.config import TrainerConfig

NAME = "gpu"
_KERNELS: list[torch.library.Library] = []
"""A library takes its kernels back when it is collected."""


class _Event:
    """Nothing runs, so there is nothing to wait for."""

    def record(self, stream: Any = None) -> "_Event":
        return self

    def wait(self, stream: Any = None) -> None: ...

    def synchronize(self) -> None: ...


class _Stream:
    def wait_stream(self, other: Any) -> None: ...

    def wait_event(self, event: Any) -> None: ...

    def synchronize(self) -> None: ...

    def record_event(self, event: Any = None) -> Any:
        return event or _Event()


class _Module(_DummyBackendModule):  # type: ignore[misc]
    Event = _Event

    def Stream(self, priority: int = 0) -> _Stream:
        return _Stream()

    def current_stream(self, device: Any = None) -> _Stream:
        return _Stream()

    def stream(self, stream: Any) -> Any:
        return nullcontext()

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]


def register() -> None:
    """Make the device known to torch; once a process."""
    _setup_privateuseone_for_python_backend(NAME, _Module())
    # One kernel on CUDA, which torch would replace by six of plain arithmetic here. It never runs.
    kernels = torch.library.Library("aten", "IMPL", "PrivateUse1")
    kernels.impl("silu_backward", lambda gradient, _: torch.empty_like(gradient))
    _KERNELS.append(kernels)


@contextmanager
def fake_ranks(config: TrainerConfig) -> Iterator[DeviceMesh]:
    """Inside, this process is rank 0 of a group whose collectives return at once."""
    store = FakeStore()
    dist.init_process_group("fake", store=store, rank=0, world_size=config.world_size)
    try:
        if config.model_copies == 1:
            yield init_device_mesh(NAME, (config.shards,))
        else:
            shape = config.model_copies, config.shards
            yield init_device_mesh(NAME, shape, mesh_dim_names=("copy", "shard"))
    finally:
        dist.destroy_process_group()


class _WorkAlone:
    def check(self) -> None: ...

    def once_a_node(self, work: Callable[[], object]) -> None:
        work()


@contextmanager
def joint_work_alone() -> Iterator[_WorkAlone]:
    """In place of `services.trainer.joint_work` in one of `fake_ranks`, which has no peers."""
    yield _WorkAlone()


@contextmanager
def counted(explained: bool = False) -> Iterator[StorageCounter]:
    """Inside, tensors are fake and count; those on the device say that they are on CUDA, for which
    attention has a kernel of its own."""
    on_cuda = property(lambda tensor: tensor.device.type == NAME)
    with ExitStack() as stack:
        stack.enter_context(patch.object(FakeTensor, "is_cuda", on_cuda, create=True))
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        # New tensors of numbers are made on the CPU and then moved, not on the device.
        before = torch._C._only_lift_cpu_tensors()
        torch._C._set_only_lift_cpu_tensors(True)
        stack.callback(torch._C._set_only_lift_cpu_tensors, before)
        yield stack.enter_context(StorageCounter(NAME if explained else ""))
