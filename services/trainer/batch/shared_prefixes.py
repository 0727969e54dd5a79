"""Rows that begin with the same tokens: an order in which each shares most with the one before.

Answers of a sample group share their prompt, turns of an episode their history, branches their
stem. Plain arithmetic on token ids, without torch.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Self

import numpy as np
from numpy.typing import NDArray

from services.protocol.train_batch import Ints, TokenRows, starts

WORTH = 32
"""What is shared is computed once if that saves this fraction of the tokens that branch off it:
each of those then meets one more part of its attention. Measured (benchmarks/shared_prefix.py)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SharedPrefixes:
    """What R rows share.

    Attributes:
        lengths: int64 `[R]`, tokens of each row.
        order: int64 `[R]`, the rows in that order.
        place: int64 `[R]`, of each row in it.
        shared: int64 `[R]`, by place, tokens that a row has in common with the row before it.
    """

    lengths: Ints
    order: Ints
    place: Ints
    shared: Ints

    @classmethod
    def none(cls, lengths: Ints) -> Self:
        """Of rows that share nothing."""
        same = np.arange(len(lengths))
        return cls(lengths=lengths, order=same, place=same, shared=np.zeros_like(same))

    @classmethod
    def of(cls, rows: TokenRows, chosen: Ints, groups: Ints) -> Self:
        """Of the chosen rows, whose sample groups are given; rows of a group are neighbours."""
        lengths, begins = rows.lengths[chosen], starts(rows.lengths)[chosen].tolist()
        ids = [
            rows.ids[begin : begin + length]
            for begin, length in zip(begins, lengths.tolist(), strict=True)
        ]
        order = np.arange(len(chosen))
        shared = np.zeros_like(order)
        cuts = [0, *(np.flatnonzero(np.diff(groups)) + 1).tolist(), len(chosen)]
        for first, end in pairwise(cuts):
            # Bytes with the highest first sort as the numbers do.
            own = sorted(range(first, end), key=lambda row: ids[row].astype(">u4").tobytes())
            order[first:end] = own
            common = [0, *(_common(ids[one], ids[other]) for one, other in pairwise(own))]
            shared[first:end] = _worthwhile(lengths[own], np.array(common[: len(own)]))
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        return cls(lengths=lengths, order=order, place=place, shared=shared)

    def among(self, rows: Ints) -> tuple[Ints, Ints]:
        """Some of the rows in order, and what each shares with the one before it among them."""
        places = np.sort(self.place[rows])
        shared = np.zeros_like(places)
        if len(places) > 1:
            # Two rows share what all between them do.
            upto = self.shared[: places[-1] + 1]
            shared[1:] = np.minimum.reduceat(upto, places[:-1] + 1)
        return self.order[places], shared


def _common(one: NDArray[np.int32], other: NDArray[np.int32]) -> int:
    """How many first tokens are the same."""
    size = min(len(one), len(other))
    differs = one[:size] != other[:size]
    return int(differs.argmax()) if differs.any() else size


def _worthwhile(lengths: Ints, common: Ints) -> Ints:
    """What rows had better share, each with the one before: all of it or, where little would be
    saved, only what more of them share.

    Args:
        lengths: of the rows in order.
        common: tokens that each has in common with the one before; 0 for the first.
    """
    shared = np.zeros_like(common)
    todo = [(0, len(lengths), 0)]
    while todo:
        first, end, above = todo.pop()
        if end - first < 2:
            continue
        inner = common[first + 1 : end]
        depth = int(inner.min())
        saved = (depth - above) * (end - first - 1)
        below = int((lengths[first:end] - depth).sum())
        kept = depth if saved * WORTH >= below else above
        cuts = (first + 1 + np.flatnonzero(inner == depth)).tolist()
        shared[cuts] = kept
        todo += [(*edge, kept) for edge in pairwise([first, *cuts, end])]
    return shared
