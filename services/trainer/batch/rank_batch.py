"""What one rank gets of a train batch: its own rows, and counts of all."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from services.protocol.train_batch import Ints, TokenRows


@dataclass(frozen=True, kw_only=True, eq=False)
class Rows:
    """B trajectories that carry a gradient.

    Attributes:
        tokens: theirs, prompts and answers; with credit by turn or token its `turn_return` are
            advantages.
        place: int64 `[B]`, of each in the whole batch.
        group_ids: int64 `[B]`, of their sample groups.
        indexes: int64 `[B]`, of each in its group.
        advantages: float64 `[B]`, the same for each trained token; where the algorithm goes by
            token, what the whole answer earned.
        sampled: int64 `[B]`, tokens of each that the policy sampled: the trained ones, and those
            that are too old to be.
        given: bool `[B]`, answers that were not sampled.
        shared: int64 `[B]`, first tokens that each has in common with the row before it in its
            micro-batch, and that are computed once.
    """

    tokens: TokenRows
    place: Ints
    group_ids: Ints
    indexes: Ints
    advantages: NDArray[np.float64]
    sampled: Ints
    given: NDArray[np.bool_]
    shared: Ints

    def __len__(self) -> int:
        """B."""
        return len(self.place)

    def split(self, sizes: Sequence[int]) -> "list[Rows]":
        """Pieces of so many rows each, in order; views of these arrays."""
        first, pieces = 0, []
        for size, tokens in zip(sizes, self.tokens.split(sizes), strict=True):
            mine = slice(first, first + size)
            pieces.append(
                Rows(
                    tokens=tokens,
                    place=self.place[mine],
                    group_ids=self.group_ids[mine],
                    indexes=self.indexes[mine],
                    advantages=self.advantages[mine],
                    sampled=self.sampled[mine],
                    given=self.given[mine],
                    shared=self.shared[mine],
                )
            )
            first += size
        return pieces


@dataclass(frozen=True, kw_only=True)
class RankMinibatch:
    """One rank's part of one optimizer step.

    Attributes:
        tokens: sampled tokens over all ranks and micro-batches, too old ones and those of answers
            without a row included, for the loss denominator.
        sequences: sampled trajectories over all ranks and micro-batches, likewise.
        given_tokens: tokens of given answers over all ranks and micro-batches, likewise.
        trained: tokens of both kinds that have a row and are not too old, over all ranks.
        micro_batches: rows of each of this rank's micro-batches, equally many micro-batches on
            all ranks; one of 0 rows only keeps the ranks in step.
    """

    tokens: int
    sequences: int
    given_tokens: int
    trained: int
    micro_batches: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Rewards:
    """What advantages are computed from: numbers of each of the batch's S trajectories.

    Attributes:
        values: float64 `[S]`, penalties for length included.
        named: float64 `[S, K]`, those that are normalised each by itself.
        sizes: int32, trajectories of each sample group.
        tokens: int64 `[S]`, tokens that may carry a gradient, as far as the trajectory alone
            decides it.
        given: bool `[S]`, what has no advantage, since it was not sampled.
    """

    values: NDArray[np.float64]
    named: NDArray[np.float64]
    sizes: NDArray[np.int32]
    tokens: Ints
    given: NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True, eq=False)
class RankBatch:
    """One rank's part of a train batch.

    Attributes:
        step: 1-based number of the train step.
        detailed: ids of the sample groups whose `TokenDetail`s are reported.
        rows: this rank's, micro-batch after micro-batch.
        minibatches: how the rows are cut.
        rewards: of the whole batch, where a penalty changes them before advantages are taken.
    """

    step: int
    detailed: frozenset[int]
    rows: Rows
    minibatches: tuple[RankMinibatch, ...]
    rewards: Rewards | None = None

    def micro_batches(self) -> list[list[Rows]]:
        """The rows of each micro-batch, by minibatch; views."""
        pieces = iter(self.rows.split([n for one in self.minibatches for n in one.micro_batches]))
        return [[next(pieces) for _ in one.micro_batches] for one in self.minibatches]
