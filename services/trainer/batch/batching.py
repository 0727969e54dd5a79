"""Divides the rows of a train batch among ranks: plain arithmetic, without torch.

One process plans for all, so that all ranks agree on the number of forward passes (FSDP hangs
when they differ) and on the global counts without a collective.
"""

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass

MicroBatches = tuple[tuple[int, ...], ...]
"""Rows of each micro-batch of one rank; an empty micro-batch only keeps the ranks in step."""


@dataclass(frozen=True, kw_only=True)
class PassLimits:
    """What passes are cut to.

    Attributes:
        world_size: how many parts the rows of a pass are divided into, one micro-batch each.
        max_tokens: of one micro-batch; a longer row stands alone.
        padded: rows are padded to the longest of their micro-batch.
        attention: see `row_cost`.
        longest_row: tokens of the longest row that can be trained; None without a limit.
    """

    world_size: int
    max_tokens: int
    padded: bool = False
    attention: float = 0.0
    longest_row: int | None = None


@dataclass(frozen=True, kw_only=True)
class Minibatch:
    """The rows of one optimizer step.

    Attributes:
        tokens: sampled tokens of its rows over all ranks and micro-batches, for the loss
            denominator.
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
    lengths: Sequence[int],
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
        lengths: tokens of each row.
        counted: those of them that the policy sampled or, in a given answer, that it learns.
        given: which rows are given answers.
        count: optimizer steps.
        seed: of the split.
        limits: what passes are cut to.
    """
    order = list(range(len(lengths)))
    random.Random(seed).shuffle(order)
    minibatches = []
    for index in range(count):
        chosen = order[index * len(order) // count : (index + 1) * len(order) // count]
        if not chosen:
            continue
        plan = plan_microbatches([lengths[i] for i in chosen], limits)
        minibatches.append(
            Minibatch(
                tokens=sum(counted[i] for i in chosen if not given[i]),
                sequences=sum(not given[i] for i in chosen),
                given_tokens=sum(counted[i] for i in chosen if given[i]),
                ranks=tuple(
                    tuple(tuple(chosen[i] for i in micro) for micro in rank) for rank in plan
                ),
            )
        )
    return tuple(minibatches)


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
    order = sorted(range(len(bins)), key=lambda i: (-loads[i], i))
    dealt: list[list[tuple[int, ...]]] = [[] for _ in range(world_size)]
    for index in range(len(bins) // world_size):
        several = order[index * world_size : (index + 1) * world_size]
        # Every other pass the other way round, else the first rank had the most each time.
        for rank, bin_ in enumerate(several if index % 2 == 0 else reversed(several)):
            dealt[rank].append(tuple(bins[bin_]))
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
