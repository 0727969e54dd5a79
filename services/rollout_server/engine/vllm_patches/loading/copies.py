"""How a loader fills a parameter: which part of a version's memory goes to which of its rows."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


@dataclass(frozen=True, kw_only=True)
class Part:
    """A tensor within a version's memory.

    Attributes:
        start: of its first element, bytes.
        dtype: see `torch.Tensor`.
        shape: see `torch.Tensor`.
        stride: see `torch.Tensor`.
    """

    start: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def of(self, block: Tensor) -> Tensor:
        """The tensor in the memory of a version, uint8."""
        size = self.dtype.itemsize
        end = len(block) - (len(block) - self.start) % size
        return block[self.start : end].view(self.dtype).as_strided(self.shape, self.stride)


class Copies(TorchDispatchMode):
    """Watches how tensors are filled, with or without memory of their own."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._writes: list[tuple[Tensor, Tensor | None]] = []  # None: not a copy

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See `TorchDispatchMode`."""
        if func is torch.ops.aten.copy_.default:
            self._writes.append((args[0], args[1]))
        elif func._schema.is_mutable and args[0].numel():
            self._writes.append((args[0], None))
        return func(*args, **(kwargs or {}))

    def source_of(self, filled: Tensor, block: Tensor) -> Part | None:
        """The part of `block` that was copied to `filled`, byte by byte and to all of it."""
        filled_to, shifts = 0, set()
        for to, source in sorted(self._writes, key=lambda write: write[0].storage_offset()):
            if source is None or not is_within(source, block):
                return None
            alike = to.dtype == source.dtype == filled.dtype and to.numel() == source.numel()
            if not (alike and to.is_contiguous() and source.is_contiguous()):
                return None
            at = _offset(to, filled) * filled.itemsize
            if at != filled_to or not is_within(to, filled):
                return None
            filled_to += to.nbytes
            shifts.add(source.data_ptr() - block.data_ptr() - at)
        if filled_to != filled.nbytes or len(shifts) != 1:
            return None
        return Part(
            start=shifts.pop(),
            dtype=filled.dtype,
            shape=tuple(filled.shape),
            stride=filled.stride(),
        )

    def rows_of(self, filled: Tensor, block: Tensor) -> tuple[tuple[int, Part], ...]:
        """Whole rows of `filled` that were copied from `block` and not written again: the first of
        them, and the part."""
        found = []
        for index, (to, source) in enumerate(self._writes):
            if source is None or not (is_within(source, block) and is_within(to, filled)):
                continue
            whole = to.dim() > 0 and to.shape[1:] == filled.shape[1:]
            if not whole or to.stride() != filled.stride() or to.shape != source.shape:
                continue
            if any(_overlap(to, later) for later, _ in self._writes[index + 1 :]):
                continue
            row = _offset(to, filled) // filled.stride(0)
            found.append((row, part_of(source, block)))
        return tuple(found)


def is_within(one: Tensor, whole: Tensor) -> bool:
    """Whether two tensors lie in the same memory."""
    return one.untyped_storage()._cdata == whole.untyped_storage()._cdata


def _offset(one: Tensor, other: Tensor) -> int:
    """Elements from the first of another tensor in the same memory."""
    return int(one.storage_offset()) - int(other.storage_offset())


def _overlap(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors may share elements."""
    ahead = _offset(other, one)
    return is_within(one, other) and -_reach(other) < ahead < _reach(one)


def _reach(one: Tensor) -> int:
    """Elements of memory from the first to behind the last."""
    steps = zip(one.shape, one.stride(), strict=True)
    return 1 + sum((size - 1) * stride for size, stride in steps)


def part_of(one: Tensor, block: Tensor) -> Part:
    """Where a tensor lies in the memory of a version, uint8."""
    return Part(
        start=one.data_ptr() - block.data_ptr(),
        dtype=one.dtype,
        shape=tuple(one.shape),
        stride=one.stride(),
    )
