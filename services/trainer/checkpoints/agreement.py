"""How ranks that do something together share the work and learn what came of it."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch.distributed as dist

from services.trainer.checkpoints.write_problem import WriteProblem

T = TypeVar("T")
U = TypeVar("U")


def share(items: Sequence[T]) -> Sequence[T]:
    """This rank's part of what all ranks do together."""
    return items[dist.get_rank() :: dist.get_world_size()]


def gather(mine: T, group: dist.ProcessGroup | None = None) -> list[T]:
    """Every rank's value, in rank order. Collective."""
    everyones: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyones, mine, group=group)
    return everyones


def from_rank_0(ask: Callable[[], T], group: dist.ProcessGroup | None = None) -> T:
    """What rank 0 answers, on all ranks; the others do not ask. Collective."""
    answer: list[Any] = [ask() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(answer, group=group)
    result: T = answer[0]
    return result


def attempt(work: Callable[[], T], otherwise: U) -> tuple[T | U, WriteProblem]:
    """The result of `work` and no problem, or `otherwise` and what the file system said."""
    try:
        return work(), WriteProblem()
    except OSError as error:
        return otherwise, WriteProblem.of_file(error)
