"""Divides the rows of a train batch among ranks: plain arithmetic, without torch.

One process plans for all, so that all ranks agree on the number of forward passes (FSDP hangs
when they differ) and on the global counts without a collective.
"""

import heapq
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from services.protocol.train_batch import Ints
from services.trainer.batch.shared_prefixes import SharedPrefixes

MicroBatches = tuple[tuple[int, ...], ...]
"""Rows of each micro-batch of one rank; an empty micro-batch only keeps the ranks in step."""

_PIECES = (math.inf, 1.0, 0.5, 0.25, 0.125, 0.0)
"""Sizes of the pieces that trees are cut into, in shares of a rank's part of the minibatch."""
_GAIN = 0.97
"""Finer pieces are taken if they leave no more than this of the time."""


@dataclass(frozen=True, kw_only=True)
class PassLimits:
    """What passes are cut to.

    Attributes:
        world_size: how many parts the rows of a pass are divided into, one micro-batch each.
        max_tokens: of one micro-batch; a longer row stands alone.
        padded: rows are padded to the longest of their micro-batch.
        attention: see `row_cost`.
        longest_row: tokens of the longest row that can be trained; None without a limit.
        shares: tokens that rows of a micro-batch share are computed once, and count once.
    """

    world_size: int
    max_tokens: int
    padded: bool = False
    attention: float = 0.0
    longest_row: int | None = None
    shares: bool = False


@dataclass(frozen=True, kw_only=True)
class Minibatch:
    """The rows of one optimizer step.

    Attributes:
        tokens: sampled tokens over all ranks and micro-batches, too old ones and those of answers
            without a row included, for the loss denominator.
        sequences: sampled trajectories over all ranks and micro-batches, likewise.
        given_tokens: tokens of given answers over all ranks and micro-batches, likewise.
        ranks: the micro-batches of each rank, equally many for all.
    """

    tokens: int
    sequences: int
    given_tokens: int
    ranks: tuple[MicroBatches, ...]


def row_cost(length: int, attention: float) -> float:
    """Floating-point operations of a row of n tokens, in those of one token without attention.

    `n + attention n^2`, with `attention = L H d / N`: each of N multiplied parameters is used
    once a token, 2 operations, and each of L layers multiplies H heads of size d with half of
    all pairs of tokens twice, 2 H d n^2 operations (PaLM, arXiv 2204.02311, appendix B, halved
    since attention is causal). Forward and backward passes are in the same proportion.
    """
    return length + attention * length * length


def plan_minibatches(
    rows: SharedPrefixes,
    counted: Sequence[int],
    given: Sequence[bool],
    *,
    count: int,
    seed: str,
    limits: PassLimits,
) -> tuple[Minibatch, ...]:
    """Split rows at random into `count` minibatches of equal size, and those over ranks.

    The split depends on `seed` and the number of rows alone, not on the number of ranks. Fewer
    rows than minibatches make fewer minibatches.

    Args:
        rows: their lengths, and what they share.
        counted: their tokens that the policy sampled or, in a given answer, that it learns.
        given: which rows are given answers.
        count: optimizer steps.
        seed: of the split.
        limits: what passes are cut to.
    """
    order = list(range(len(rows.lengths)))
    random.Random(seed).shuffle(order)
    minibatches = []
    for index in range(count):
        chosen = order[index * len(order) // count : (index + 1) * len(order) // count]
        if not chosen:
            continue
        plan = _plan_rows(rows, chosen, limits)
        minibatches.append(
            Minibatch(
                tokens=sum(counted[i] for i in chosen if not given[i]),
                sequences=sum(not given[i] for i in chosen),
                given_tokens=sum(counted[i] for i in chosen if given[i]),
                ranks=plan,
            )
        )
    return tuple(minibatches)


def _plan_rows(
    rows: SharedPrefixes, chosen: Sequence[int], limits: PassLimits
) -> tuple[MicroBatches, ...]:
    """`plan_microbatches` of some rows, those of a tree together and in its order.

    Large pieces of trees save the most tokens, small ones load ranks more evenly: of several
    sizes one is taken by which the dearest micro-batches of all passes cost least.
    """
    own, shared = rows.among(np.array(chosen))
    if not shared.any():
        plan = plan_microbatches(rows.lengths[chosen].tolist(), limits)
        return tuple(tuple(tuple(chosen[i] for i in micro) for micro in rank) for rank in plan)

    def cost_of(some: Ints, shared: Ints) -> float:
        spans = zip(rows.lengths[some].tolist(), shared.tolist(), strict=True)
        return sum(
            row_cost(length, limits.attention) - row_cost(same, limits.attention)
            for length, same in spans
        )

    part = cost_of(own, shared) / limits.world_size
    best: tuple[MicroBatches, ...] = ()
    least = math.inf
    for share in _PIECES if limits.world_size > 1 else _PIECES[:1]:
        pieces = _pieces(rows.lengths[own].tolist(), shared.tolist(), limits, share * part)
        bins = _fewest_bins([one.tokens for one in pieces], [one.cost for one in pieces], limits)
        micros = [
            rows.among(np.concatenate([own[pieces[i].rows] for i in bin_] or [own[:0]]))
            for bin_ in bins
        ]
        loads = [cost_of(*one) for one in micros]
        slowest = sum(sorted(loads, reverse=True)[:: limits.world_size])
        if slowest < _GAIN * least:
            least = slowest
            best = _dealt([tuple(some.tolist()) for some, _ in micros], loads, limits.world_size)
    return best


@dataclass(frozen=True)
class _Piece:
    """Neighbours in the order of a tree, what they share counted once."""

    rows: slice
    tokens: int
    cost: float


def _pieces(
    lengths: Sequence[int], shared: Sequence[int], limits: PassLimits, most: float
) -> list[_Piece]:
    """Trees in pieces that cost at most `most` and fit a micro-batch, or of one row."""
    pieces: list[_Piece] = []
    for row, (length, same) in enumerate(zip(lengths, shared, strict=True)):
        cost = row_cost(length, limits.attention)
        if same:
            before = pieces[-1]
            tokens = before.tokens + length - same
            together = before.cost + cost - row_cost(same, limits.attention)
            if tokens <= limits.max_tokens and together <= most:
                pieces[-1] = _Piece(slice(before.rows.start, row + 1), tokens, together)
                continue
        pieces.append(_Piece(slice(row, row + 1), length, cost))
    return pieces


def plan_microbatches(lengths: Sequence[int], limits: PassLimits) -> tuple[MicroBatches, ...]:
    """Cut rows into micro-batches and deal those to ranks.

    All ranks get the same number of micro-batches, some perhaps empty. Packed, few are made that
    hold at most `max_tokens` each, all of about equal cost, and those of one pass are neighbours
    in cost, since ranks wait for each other in every pass. Padded, neighbours in length share
    a micro-batch as long as rows times longest fits.

    Args:
        lengths: tokens of each row; one longer than `max_tokens` stands alone.
        limits: what passes are cut to.
    """
    world_size = limits.world_size
    costs = [row_cost(length, limits.attention) for length in lengths]
    if limits.padded:
        cut = [_cut(rank, lengths, limits.max_tokens) for rank in _spread(costs, world_size)]
        passes = max(map(len, cut))
        return tuple(tuple(micros + [()] * (passes - len(micros))) for micros in cut)
    bins = _fewest_bins(lengths, costs, limits)
    loads = [sum(costs[row] for row in rows) for rows in bins]
    return _dealt([tuple(rows) for rows in bins], loads, world_size)


def _dealt(
    bins: Sequence[tuple[int, ...]], loads: Sequence[float], world_size: int
) -> tuple[MicroBatches, ...]:
    """Bins, `world_size` a pass, to the ranks: those of one pass are neighbours in load."""
    order = sorted(range(len(bins)), key=lambda i: (-loads[i], i))
    dealt: list[list[tuple[int, ...]]] = [[] for _ in range(world_size)]
    for index in range(len(bins) // world_size):
        several = order[index * world_size : (index + 1) * world_size]
        # Every other pass the other way round, else the first rank had the most each time.
        for rank, bin_ in enumerate(several if index % 2 == 0 else reversed(several)):
            dealt[rank].append(bins[bin_])
    return tuple(map(tuple, dealt))


def _fewest_bins(
    lengths: Sequence[int], costs: Sequence[float], limits: PassLimits
) -> list[list[int]]:
    """Rows in `world_size` bins a pass, each within the budget of tokens, in few passes.

    From the least number that the tokens allow it looks ahead in growing strides and goes back
    to the first number that will do between the last two.
    """

    def bins_of(passes: int) -> list[list[int]] | None:
        bins = _spread(costs, passes * limits.world_size)
        fit = (
            len(rows) < 2 or sum(lengths[row] for row in rows) <= limits.max_tokens for rows in bins
        )
        return bins if all(fit) else None

    least = max(1, -(-sum(lengths) // (limits.world_size * limits.max_tokens)))
    low, high, found = least - 1, least, bins_of(least)
    while found is None:
        low, high = high, high + 2 * (high - low)
        found = bins_of(high)
    while high - low > 1:
        middle = (low + high) // 2
        fewer = bins_of(middle)
        if fewer is None:
            low = middle
        else:
            high, found = middle, fewer
    return found


def _spread(costs: Sequence[float], count: int) -> list[list[int]]:
    """Rows in `count` parts of about equal cost: the dearest first to the cheapest part.

    Within a part the dearest row comes first.
    """
    parts: list[list[int]] = [[] for _ in range(count)]
    loads = [(0.0, index) for index in range(count)]
    for row in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        load, index = loads[0]
        parts[index].append(row)
        heapq.heapreplace(loads, (load + costs[row], index))
    return parts


def _cut(rows: Sequence[int], lengths: Sequence[int], max_tokens: int) -> list[tuple[int, ...]]:
    """Cut rows, longest first, into micro-batches whose padded size fits."""
    micros: list[list[int]] = []
    for row in rows:
        if micros and (len(micros[-1]) + 1) * lengths[micros[-1][0]] <= max_tokens:
            micros[-1].append(row)
        else:
            micros.append([row])
    return [tuple(micro) for micro in micros]
