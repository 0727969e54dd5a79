"""The rows of a micro-batch as a tree: each token that rows share stands in it once.

Its tokens lie as rows are read one after another, without what a row shares with the one before
it. So what follows on a token lies behind it without a gap: a token sees those before it whose
followers it is among.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from services.protocol.train_batch import Ints, starts
from services.trainer.batch.packing import PackedRows


@dataclass(frozen=True, kw_only=True, eq=False)
class PrefixTree:
    """U tokens for the T tokens of B rows, N of them trained.

    A segment is a run of tokens without a branch inside.

    Attributes:
        shared: of each row, its first tokens that it has from the row before.
        input_ids: int64 `[U]`.
        place: int64 `[U]`, the position of each token in its rows.
        at: int64 `[T]`, where each token of the rows stands in the tree.
        scored: int64 `[M]`, the places in the tree that predict trained tokens, once for each
            trained token of the tree.
        target: int64 `[M]`, those tokens.
        again: int64 `[N]`, which of the M each trained token of the rows is.
        segments: in order, as rows end to end.
        lasts: of each segment, the end of its followers in the tree.
        depth: tokens of the longest row.
    """

    shared: tuple[int, ...]
    input_ids: Tensor
    place: Tensor
    at: Tensor
    scored: Tensor
    target: Tensor
    again: Tensor
    segments: PackedRows
    lasts: tuple[int, ...]
    depth: int

    @classmethod
    def of(
        cls,
        ids: NDArray[np.int32],
        lengths: Sequence[int],
        shared: Sequence[int],
        trained: Ints | None = None,
    ) -> Self:
        """The tree of rows.

        Args:
            ids: `[T]`, of the rows end to end.
            lengths: of the B rows, each at least 1.
            shared: of each row, tokens at its beginning that the row before has as well.
            trained: ascending places `[N]` in `ids`; none begins a row.
        """
        begins = starts(np.array(lengths)).tolist()
        at = np.empty(len(ids), dtype=np.int64)
        count = before = 0
        for begin, length, same in zip(begins, lengths, shared, strict=False):
            at[begin : begin + same] = at[before : before + same]
            at[begin + same : begin + length] = np.arange(count, count + length - same)
            count, before = count + length - same, begin
        place, tokens = np.empty(count, dtype=np.int64), np.empty(count, dtype=np.int64)
        place[at] = np.arange(len(ids)) - np.array(begins[:-1]).repeat(lengths)
        tokens[at] = ids
        trained = np.empty(0, dtype=np.int64) if trained is None else trained
        own, first, again = np.unique(at[trained], return_index=True, return_inverse=True)
        segments = _segments(lengths, shared)
        arrays = {
            "input_ids": tokens,
            "place": place,
            "at": at,
            "scored": at[trained[first] - 1],
            "target": tokens[own],
            "again": again,
        }
        return cls(
            shared=tuple(map(int, shared)),
            segments=PackedRows.of([end - start for start, end, _ in segments]),
            lasts=tuple(last for *_, last in segments),
            depth=max(lengths),
            **{name: torch.from_numpy(one) for name, one in arrays.items()},
        )

    @property
    def branched(self) -> list[tuple[int, int, int]]:
        """Segments on which others follow: where each begins and ends, and where those end."""
        ends = self.segments.ends.tolist()
        each = zip(ends, ends[1:], self.lasts, strict=False)
        return [one for one in each if one[2] > one[1]]

    @property
    def last(self) -> Tensor:
        """int64 `[U]`, the end of the followers of each token's segment."""
        row = self.segments.row
        return torch.tensor(self.lasts, device=row.device)[row]

    def to(self, device: torch.device) -> Self:
        """The same on another device."""
        values: dict[str, Any] = {one.name: getattr(self, one.name) for one in fields(self)}
        return type(self)(
            **{name: one.to(device) if hasattr(one, "to") else one for name, one in values.items()}
        )


def _segments(lengths: Sequence[int], shared: Sequence[int]) -> list[tuple[int, int, int]]:
    """Begin and end of each segment in the tree, and the end of its followers."""
    closed: list[tuple[int, int, int]] = []
    path: list[tuple[int, int, int]] = []  # segments of the row that is read: begin, end, depth
    count = 0

    def close(start: int, end: int) -> None:
        # A segment with one follower is the first part of it.
        if closed and closed[-1][0] == end and closed[-1][2] == count:
            _, end, _ = closed.pop()
        closed.append((start, end, count))

    for length, same in zip(lengths, shared, strict=True):
        while path and path[-1][2] >= same:
            close(*path.pop()[:2])
        if path and path[-1][2] + path[-1][1] - path[-1][0] > same:
            start, end, depth = path.pop()
            cut = start + same - depth
            close(cut, end)
            path.append((start, cut, depth))
        if length > same:
            path.append((count, count + length - same, same))
            count += length - same
    while path:
        close(*path.pop()[:2])
    return sorted(closed)
