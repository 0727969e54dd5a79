"""Collectives of Python objects, over the default process group unless another is given."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed as dist

T = TypeVar("T")

LONGEST_WAIT = timedelta(days=7)
"""Of a rank for its peers, in the libraries below: the leader ends ranks that hang, long before."""


def share(items: Sequence[T]) -> Sequence[T]:
    """This rank's part of items that all ranks divide among themselves."""
    return items[dist.get_rank() :: dist.get_world_size()]


def all_gather(mine: T, group: dist.ProcessGroup | None = None) -> list[T]:
    """Every rank's value, in rank order. Collective."""
    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, mine, group=group)
    return gathered


def from_rank_0(compute: Callable[[], T], group: dist.ProcessGroup | None = None) -> T:
    """The result that rank 0 computes, on all ranks. Collective."""
    values: list[Any] = [compute() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(values, group=group)
    result: T = values[0]
    return result
