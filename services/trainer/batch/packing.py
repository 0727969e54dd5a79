"""Rows of unequal length, laid end to end in one sequence without padding."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

_SHORT = 32
_WASTE = 0.75


@dataclass(frozen=True, kw_only=True)
class RowGroup:
    """Neighbouring rows of similar length, which attention pads and computes together.

    Attributes:
        start: place of the first token in the packed sequence.
        end: one past the last token.
        rows: how many rows.
        width: tokens of the longest.
        index: int64 `[end - start]`, the place of each token among `rows * width` padded
            ones; None when all rows are equally long.
    """

    start: int
    end: int
    rows: int
    width: int
    index: Tensor | None

    def padded(self, tokens: Tensor) -> Tensor:
        """`[T, heads, D]` of all rows as `[rows, heads, width, D]` of these."""
        tokens = tokens[self.start : self.end]
        if self.index is not None:
            empty = tokens.new_zeros(self.rows * self.width, *tokens.shape[1:])
            tokens = empty.index_copy(0, self.index, tokens)
        return tokens.unflatten(0, (self.rows, self.width)).transpose(1, 2)

    def flat(self, padded: Tensor) -> Tensor:
        """The other way round, `[end - start, heads, ...]` of these rows."""
        tokens = padded.transpose(1, 2).flatten(0, 1)
        return tokens if self.index is None else tokens.index_select(0, self.index)


@dataclass(frozen=True, kw_only=True)
class PackedRows:
    """The places of rows in a packed sequence of T tokens.

    Attributes:
        lengths: tokens of each of the B rows, in order.
        row: int64 `[T]`, the row of each token.
        place: int64 `[T]`, its position in the row, from 0.
        ends: int32 `[B + 1]`, 0 and the end of each row, as kernels for rows of unequal
            length want it.
        groups: the rows again, cut where lengths differ much; few if rows are sorted.
    """

    lengths: tuple[int, ...]
    row: Tensor
    place: Tensor
    ends: Tensor
    groups: tuple[RowGroup, ...]

    @property
    def longest(self) -> int:
        """Tokens of the longest row."""
        return max(self.lengths)

    @classmethod
    def of(cls, lengths: Sequence[int], device: torch.device | None = None) -> "PackedRows":
        """Rows of these lengths, each at least 1, end to end in this order."""
        counts = torch.tensor(lengths, device=device)
        row = torch.repeat_interleave(torch.arange(len(lengths), device=device), counts)
        ends = torch.tensor([0, *accumulate(lengths)], device=device)
        place = torch.arange(len(row), device=device) - ends[row]
        return cls(
            lengths=tuple(lengths),
            row=row,
            place=place,
            ends=ends.int(),
            groups=tuple(_group(lengths, row, place, *cut) for cut in _cuts(lengths)),
        )

    def to(self, device: torch.device) -> "PackedRows":
        """The same on another device."""
        return self if self.row.device == device else PackedRows.of(self.lengths, device)


def _cuts(lengths: Sequence[int]) -> list[tuple[int, int]]:
    """Half-open ranges of rows whose shortest is not much shorter than their longest."""
    cuts: list[tuple[int, int]] = []
    first, longest, shortest = 0, 0, 0
    for index, length in enumerate(lengths):
        longest, shortest = max(longest, length), min(shortest or length, length)
        if longest > _SHORT and shortest < _WASTE * longest:
            cuts.append((first, index))
            first, longest, shortest = index, length, length
    return [*cuts, (first, len(lengths))]


def _group(lengths: Sequence[int], row: Tensor, place: Tensor, first: int, last: int) -> RowGroup:
    start, size = sum(lengths[:first]), sum(lengths[first:last])
    width = max(lengths[first:last])
    mine = slice(start, start + size)
    even = size == (last - first) * width
    return RowGroup(
        start=start,
        end=start + size,
        rows=last - first,
        width=width,
        index=None if even else (row[mine] - first) * width + place[mine],
    )
