"""The tensors in a model's safetensors files, read piece by piece.

Bytes are read and not mapped: pages of a mapped file count as memory of each process that maps it.
"""

import json
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

_ELEMENTS = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_LENGTH_BYTES = 8  # of the header's length, with which a file begins
_LONGEST_HEADER = 100_000_000  # bytes; safetensors refuses longer ones, too


class DamagedWeights(ValueError):
    """A file of weights that cannot be used; the message names it."""


@dataclass(frozen=True, kw_only=True)
class StoredTensor:
    """One tensor in a file.

    Attributes:
        file: that holds it.
        dtype: of its elements; None where it is one that torch's arithmetic does not have.
        shape: of it.
        start: place of its first byte in the file.
    """

    file: Path
    dtype: torch.dtype | None
    shape: tuple[int, ...]
    start: int

    @property
    def row_bytes(self) -> int:
        """Bytes of what one index of the first dimension chooses."""
        return math.prod(self.shape[1:]) * (self.dtype.itemsize if self.dtype else 1)

    def rows(self, first: int, last: int, buffer: Tensor) -> Tensor:
        """Rows `first` to `last` of the first dimension, on the CPU.

        Args:
            first: the first row.
            last: the row after the last one.
            buffer: uint8, of as many bytes as are read or more; the result lies in it.

        Raises:
            DamagedWeights: the file ends before them.
            OSError: it cannot be read.
        """
        assert self.dtype is not None, "refused before anything is read"
        size = (last - first) * self.row_bytes
        read = buffer[:size]
        left, place = read.numpy().data, self.start + first * self.row_bytes
        with self.file.open("rb", buffering=0) as file:
            while left:
                count = os.preadv(file.fileno(), [left], place)
                if count == 0:
                    raise DamagedWeights(f"{self.file} ends before its last tensor")
                left, place = left[count:], place + count
        return read.view(self.dtype).view(last - first, *self.shape[1:])


def stored_tensors(files: Iterable[Path]) -> dict[str, StoredTensor]:
    """The tensors in some files, by name; only the files' headers are read.

    Raises:
        DamagedWeights: a file is damaged, or has not the length that its header gives.
        OSError: a file cannot be read.
    """
    return dict(chain.from_iterable(_tensors_of(file) for file in files))


def _tensors_of(file: Path) -> list[tuple[str, StoredTensor]]:
    size = file.stat().st_size
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(_LENGTH_BYTES), "little")
        if length > min(size - _LENGTH_BYTES, _LONGEST_HEADER):
            raise DamagedWeights(f"{file} is damaged: it is shorter than its header should be")
        text = opened.read(length)
    data = _LENGTH_BYTES + length
    try:
        header = json.loads(text)
        header.pop("__metadata__", None)
        found = [(name, _tensor(file, data, entry)) for name, entry in header.items()]
        end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        raise DamagedWeights(f"{file} is damaged: its header cannot be read ({error})") from None
    if size != data + end:
        raise DamagedWeights(
            f"{file} is damaged: it has {size} bytes and should have {data + end}; "
            "copy or download it again"
        )
    return found


def _tensor(file: Path, data: int, entry: dict[str, Any]) -> StoredTensor:
    start, end = entry["data_offsets"]
    shape, dtype = tuple(entry["shape"]), _ELEMENTS.get(entry["dtype"])
    if dtype is not None and end - start != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{end - start} bytes for shape {list(shape)}")
    return StoredTensor(file=file, dtype=dtype, shape=shape, start=data + start)
