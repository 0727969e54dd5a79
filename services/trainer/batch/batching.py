"""Divides a train batch among ranks: plain arithmetic, the same on every rank.

Every rank sees the whole batch and plans alone, so that all agree on the number of forward
passes (FSDP hangs when they differ) and on the global token counts without a collective.
"""

import heapq
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from services.protocol.errors import InvalidInput
from services.protocol.run.algorithm import AlgorithmConfig
from services.protocol.trainer import ScoredTrajectory, TrainBatch, TrainGroup
from services.protocol.trajectory import Trajectory
from services.trainer.algorithms.advantages.advantages import batch_advantages, group_advantages
from services.trainer.algorithms.advantages.dapo import overlong_penalty

MicroBatches = tuple[tuple[int, ...], ...]
"""Rows of each micro-batch of one rank; an empty micro-batch only keeps the ranks in step."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One trajectory that carries a gradient.

    Attributes:
        group_id: of its sample group.
        index: of its trajectory in the group.
        trajectory: token-exact.
        advantage: the same for each of its trained tokens; where the algorithm goes by token,
            what the whole answer earned.
    """

    group_id: int
    index: int
    trajectory: Trajectory
    advantage: float

    @property
    def length(self) -> int:
        """Tokens of prompt and response."""
        return len(self.trajectory.prompt_token_ids) + len(self.trajectory.response_token_ids)

    @property
    def trained_tokens(self) -> int:
        """Tokens that carry a gradient."""
        return sum(self.trajectory.loss_mask)


@dataclass(frozen=True, kw_only=True)
class Minibatch:
    """The rows of one optimizer step.

    Attributes:
        tokens: trained tokens over all ranks and micro-batches, for the loss denominator.
        sequences: trajectories over all ranks and micro-batches, likewise.
        ranks: the micro-batches of each rank, equally many for all.
    """

    tokens: int
    sequences: int
    ranks: tuple[MicroBatches, ...]


def rows_of(batch: TrainBatch, algorithm: AlgorithmConfig) -> tuple[Row, ...]:
    """The rows of a batch; what has no gradient under `algorithm` is left out.

    That is groups of equal rewards, where the group's mean is the baseline and there is no
    KL penalty, and with `mask_truncated` answers that hit the length limit.

    Raises:
        InvalidInput: a group too small to have a baseline, or a trajectory without a prompt.
    """
    for group in batch.groups:
        _check(group, algorithm)
    rewards = [[_reward(one, algorithm) for one in group.trajectories] for group in batch.groups]
    tokens = [[_trained(one, algorithm) for one in g.trajectories] for g in batch.groups]
    if algorithm.by_token:  # `credit` continues from these
        advantages = [group_advantages(own, algorithm.advantage) for own in rewards]
    else:
        advantages = batch_advantages(rewards, tokens, algorithm.advantage)
    keep_equal = algorithm.learns_from_equal_rewards
    return tuple(
        Row(group_id=group.group_id, index=index, trajectory=one.trajectory, advantage=advantage)
        for group, own, values in zip(batch.groups, rewards, advantages, strict=True)
        if keep_equal or min(own) != max(own)
        for index, (one, advantage) in enumerate(zip(group.trajectories, values, strict=True))
        if _trained(one, algorithm)
    )


def advantages_of(rows: Sequence[Row]) -> tuple[tuple[int, tuple[tuple[int, float], ...]], ...]:
    """See `TrainReport.advantages`."""
    found: dict[int, list[tuple[int, float]]] = {}
    for row in rows:
        found.setdefault(row.group_id, []).append((row.index, row.advantage))
    return tuple((group_id, tuple(own)) for group_id, own in found.items())


def lowered(batch: TrainBatch, rows: Sequence[Row], penalties: Sequence[float]) -> TrainBatch:
    """The batch with the reward of each row's trajectory lowered by the row's penalty."""
    paid = {(row.group_id, row.index): cost for row, cost in zip(rows, penalties, strict=True)}
    groups = [
        replace(
            group,
            trajectories=tuple(
                replace(one, reward=one.reward - paid.get((group.group_id, index), 0.0))
                for index, one in enumerate(group.trajectories)
            ),
        )
        for group in batch.groups
    ]
    return replace(batch, groups=tuple(groups))


def left_out(
    batch: TrainBatch, rows: Sequence[Row], algorithm: AlgorithmConfig
) -> dict[str, float]:
    """Shares of the tokens sampled by the policy that carry no gradient, by cause and in all."""
    trained = {(row.group_id, row.index) for row in rows}
    counts = {"equal_rewards": 0, "truncated": 0, "stale": 0}
    sampled = 0
    for group in batch.groups:
        for index, one in enumerate(group.trajectories):
            tokens = sum(one.trajectory.loss_mask)
            sampled += tokens + one.stale_tokens
            counts["stale"] += one.stale_tokens
            if (group.group_id, index) not in trained:
                cut = algorithm.mask_truncated and one.trajectory.finish_reason == "length"
                counts["truncated" if cut else "equal_rewards"] += tokens
    shares = {f"left_out_{cause}": count / max(sampled, 1) for cause, count in counts.items()}
    return shares | {"left_out_fraction": sum(counts.values()) / max(sampled, 1)}


def _check(group: TrainGroup, algorithm: AlgorithmConfig) -> None:
    field, needed = f"batch.groups[{group.group_id}]", algorithm.smallest_group
    if len(group.trajectories) < needed:
        fix = f"A group needs {needed} trajectories for advantage {algorithm.advantage}."
        raise InvalidInput(field, len(group.trajectories), fix)
    if any(not one.trajectory.prompt_token_ids for one in group.trajectories):
        raise InvalidInput(field, "an empty prompt", "A prompt needs at least one token.")


def _trained(one: ScoredTrajectory, algorithm: AlgorithmConfig) -> int:
    """Tokens that may carry a gradient, as far as the trajectory alone decides it."""
    if algorithm.mask_truncated and one.trajectory.finish_reason == "length":
        return 0
    return sum(one.trajectory.loss_mask)


def _reward(one: ScoredTrajectory, algorithm: AlgorithmConfig) -> float:
    if algorithm.overlong_limit is None:
        return one.reward
    length = len(one.trajectory.response_token_ids)
    return one.reward + overlong_penalty(
        length, algorithm.overlong_limit, algorithm.overlong_buffer
    )


def plan_minibatches(
    rows: Sequence[Row],
    *,
    count: int,
    world_size: int,
    max_tokens: int,
    seed: str,
    padded: bool = False,
) -> tuple[Minibatch, ...]:
    """Split rows at random into `count` minibatches of equal size, and those over ranks.

    The split depends on `seed` and the rows alone, not on the number of ranks. Fewer rows
    than minibatches make fewer minibatches.
    """
    order = list(range(len(rows)))
    random.Random(seed).shuffle(order)
    minibatches = []
    for index in range(count):
        chosen = order[index * len(order) // count : (index + 1) * len(order) // count]
        if not chosen:
            continue
        lengths = [rows[i].length for i in chosen]
        plan = plan_microbatches(lengths, world_size, max_tokens, padded=padded)
        minibatches.append(
            Minibatch(
                tokens=sum(rows[i].trained_tokens for i in chosen),
                sequences=len(chosen),
                ranks=tuple(
                    tuple(tuple(chosen[i] for i in micro) for micro in rank) for rank in plan
                ),
            )
        )
    return tuple(minibatches)


def plan_microbatches(
    lengths: Sequence[int], world_size: int, max_tokens: int, *, padded: bool = False
) -> tuple[MicroBatches, ...]:
    """Cut rows into micro-batches and deal those to ranks.

    All ranks get the same number of micro-batches, some perhaps empty. Packed, the fewest
    are made that hold at most `max_tokens` each, all about equally full, and those of one
    pass are neighbours in size, since ranks wait for each other in every pass. Padded,
    neighbours in length share a micro-batch as long as rows times longest fits.

    Args:
        lengths: tokens of each row; one longer than `max_tokens` stands alone.
        world_size: number of ranks.
        max_tokens: of one micro-batch.
        padded: rows are padded to the longest of their micro-batch.
    """
    if padded:
        cut = [_cut(rank, lengths, max_tokens) for rank in _spread(lengths, world_size)]
        passes = max(map(len, cut))
        return tuple(tuple(micros + [()] * (passes - len(micros))) for micros in cut)
    passes = max(1, -(-sum(lengths) // (world_size * max_tokens)))
    while True:
        bins = _spread(lengths, passes * world_size)
        loads = [sum(lengths[row] for row in rows) for rows in bins]
        if all(
            load <= max_tokens or len(rows) == 1 for load, rows in zip(loads, bins, strict=True)
        ):
            break
        passes += 1
    order = sorted(range(len(bins)), key=lambda i: (-loads[i], i))
    dealt: list[list[tuple[int, ...]]] = [[] for _ in range(world_size)]
    for index in range(passes):
        several = order[index * world_size : (index + 1) * world_size]
        # Every other pass the other way round, else the first rank had the most each time.
        for rank, bin_ in enumerate(several if index % 2 == 0 else reversed(several)):
            dealt[rank].append(tuple(bins[bin_]))
    return tuple(map(tuple, dealt))


def _spread(lengths: Sequence[int], count: int) -> list[list[int]]:
    """Rows in `count` parts of about equal tokens: longest first to the emptiest part.

    Within a part the longest row comes first.
    """
    parts: list[list[int]] = [[] for _ in range(count)]
    loads = [(0, index) for index in range(count)]
    for row in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        load, index = heapq.heappop(loads)
        parts[index].append(row)
        heapq.heappush(loads, (load + lengths[row], index))
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
