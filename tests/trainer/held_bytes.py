"""Counts the memory of tensors that are alive, without asking FSDP for its own view."""

import gc
from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor


def tensor_bytes() -> int:
    """Bytes of the storages of all tensors that Python can reach; views count once."""
    storages: dict[int, int] = {}
    for found in gc.get_objects():
        if not isinstance(found, torch.Tensor):
            continue
        for one in (found, found.grad if found.is_leaf else None):
            if one is not None:
                local = one._local_tensor if isinstance(one, DTensor) else one
                if not isinstance(local, FakeTensor):  # of another test, and without memory
                    storage = local.untyped_storage()
                    storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def between_passes(policy: Any, held: list[int]) -> Callable[[bool], None]:
    """The policy's `reduce_gradients`, which then also notes what is alive before each pass."""
    inner = policy.reduce_gradients

    def noted(last: bool) -> None:
        policy.reshard_all()  # passes without gradient leave the root gathered
        gc.collect()
        held.append(tensor_bytes())
        inner(last)

    return noted
