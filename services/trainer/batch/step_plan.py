"""The plan of a train step: what carries a gradient, how much of it, and on which rank.

The process that leads the ranks makes it once. It imports no torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.protocol.errors import InvalidInput
from services.protocol.run.algorithm import AlgorithmConfig
from services.protocol.train_batch import Ints, TokenRows, TrainBatch, starts, total
from services.trainer.algorithms.advantages.advantages import batch_advantages, group_advantages
from services.trainer.algorithms.advantages.dapo import overlong_penalty
from services.trainer.algorithms.advantages.gdpo import gdpo_advantages
from services.trainer.algorithms.advantages.turns import turn_advantages
from services.trainer.batch.batching import Minibatch, PassLimits, plan_minibatches
from services.trainer.batch.rank_batch import RankBatch, RankMinibatch, Rewards, Rows
from services.trainer.batch.shared_prefixes import SharedPrefixes

Advantages = tuple[tuple[int, tuple[tuple[int, float], ...]], ...]
"""See `TrainReport.advantages`."""


@dataclass(frozen=True, kw_only=True, eq=False)
class StepPlan:
    """A train step, planned for all ranks.

    What has no gradient under the algorithm is in no micro-batch: groups of equal rewards, where
    the group's mean is the baseline and there is no KL penalty, likewise what is not among the best
    answers, where these alone are learned, and with `mask_truncated` answers that hit the length
    limit.

    Attributes:
        batch: what it is of.
        rewards: of all trajectories, and which of their tokens may be trained.
        chosen: int64 `[B]`, the trajectories that carry a gradient, in order.
        advantages: float64 `[B]`, the same for each trained token of a trajectory; where the
            algorithm goes by token, what the whole answer earned; with credit by turn or token,
            the mean over its turns or tokens.
        rows: of the batch, with credit by turn or token the advantages of these in place of their
            returns.
        prefixes: what they share of what is computed once.
        minibatches: indexes into `chosen`, by rank.
    """

    batch: TrainBatch
    algorithm: AlgorithmConfig
    rewards: Rewards
    chosen: Ints
    advantages: NDArray[np.float64]
    rows: TokenRows
    prefixes: SharedPrefixes
    minibatches: tuple[Minibatch, ...]

    def part(self, row_group: int) -> RankBatch:
        """What the ranks of a row group get; a copy of their own rows."""
        micros = [micro for one in self.minibatches for micro in one.ranks[row_group]]
        order = np.array([row for micro in micros for row in micro], dtype=np.int64)
        place = self.chosen[order]
        groups, indexes = _members(self.batch)
        return RankBatch(
            step=self.batch.step,
            detailed=frozenset(self.batch.detailed),
            rows=Rows(
                tokens=self.rows.take(place),
                place=place,
                group_ids=groups[place],
                indexes=indexes[place],
                advantages=self.advantages[order],
                sampled=self.batch.rows.trained()[place] + self.batch.stale_tokens[place],
                given=self.batch.given[place],
                shared=np.concatenate([np.zeros(0, np.int64), *map(self._shared, micros)]),
            ),
            minibatches=tuple(
                RankMinibatch(
                    tokens=one.tokens,
                    sequences=one.sequences,
                    given_tokens=one.given_tokens,
                    trained=self._trained(one),
                    micro_batches=tuple(map(len, one.ranks[row_group])),
                )
                for one in self.minibatches
            ),
            rewards=self.rewards if self.algorithm.kl.in_reward else None,
        )

    def _shared(self, micro: tuple[int, ...]) -> Ints:
        return self.prefixes.among(np.array(micro, dtype=np.int64))[1]

    def _trained(self, minibatch: Minibatch) -> int:
        rows = [row for rank in minibatch.ranks for micro in rank for row in micro]
        return total(self.batch.rows.trained()[self.chosen[rows]]) if rows else 0

    def shared_fraction(self) -> float:
        """Of all tokens in rows, those that are not computed since a row before has them."""
        ranks = [rank for one in self.minibatches for rank in one.ranks]
        saved = sum(total(self._shared(micro)) for rank in ranks for micro in rank)
        return saved / max(1, total(self.prefixes.lengths))

    def left_out(self) -> dict[str, float]:
        """Shares of the tokens sampled by the policy that carry no gradient, by cause and in
        all."""
        batch = self.batch
        tokens = batch.rows.trained()
        out = np.ones(len(tokens), dtype=np.bool_)
        out[self.chosen] = False
        cut = batch.truncated & self.algorithm.mask_truncated
        counts = {
            "equal_rewards": total(tokens[out & ~cut]),
            "truncated": total(tokens[out & cut]),
            "stale": total(batch.stale_tokens),
        }
        sampled = max(total(tokens) + counts["stale"], 1)
        shares = {f"left_out_{cause}": count / sampled for cause, count in counts.items()}
        return shares | {"left_out_fraction": sum(counts.values()) / sampled}

    def reported_advantages(self) -> Advantages:
        """See `TrainReport.advantages`."""
        groups, indexes = _members(self.batch)
        found: dict[int, list[tuple[int, float]]] = {}
        columns = groups[self.chosen], indexes[self.chosen], self.advantages
        for group, index, advantage in zip(*(one.tolist() for one in columns), strict=True):
            found.setdefault(group, []).append((index, advantage))
        return tuple((group, tuple(own)) for group, own in found.items())


def plan_step(
    batch: TrainBatch,
    algorithm: AlgorithmConfig,
    *,
    seed: str,
    limits: PassLimits,
    vocabulary: int,
) -> StepPlan:
    """Plan a train step.

    Args:
        batch: all trajectories.
        algorithm: what learns from them.
        seed: of the split into minibatches.
        limits: what passes are cut to.
        vocabulary: number of the model's token ids.

    Raises:
        InvalidInput: a token id that the model does not have, a group too small to have
            a baseline, a trajectory without a prompt, or one that is too long for the model.
    """
    _check(batch, algorithm, limits.longest_row, vocabulary)
    cut = batch.truncated & algorithm.mask_truncated
    tokens = np.where(cut, 0, batch.rows.trained())
    rewards = Rewards(
        values=_shaped(batch, algorithm),
        named=batch.named,
        sizes=batch.group_sizes,
        tokens=tokens,
        given=batch.given,
    )
    rows, advantages = batch.rows, advantages_of(rewards, algorithm)
    if algorithm.credit != "episode":
        rows, advantages = _by_turn(rows, rewards)
    has_gradient = _have_gradient(rows, rewards, advantages, algorithm)
    chosen = np.flatnonzero(has_gradient & (tokens > 0))
    prefixes = SharedPrefixes.none(batch.rows.lengths[chosen])
    if limits.shares:
        prefixes = SharedPrefixes.of(batch.rows, chosen, _members(batch)[0][chosen])
    return StepPlan(
        batch=batch,
        algorithm=algorithm,
        rewards=rewards,
        chosen=chosen,
        advantages=advantages[chosen],
        rows=rows,
        prefixes=prefixes,
        minibatches=_with_stale(
            plan_minibatches(
                prefixes,
                (tokens + batch.stale_tokens)[chosen].tolist(),
                batch.given[chosen].tolist(),
                count=algorithm.minibatches,
                seed=seed,
                limits=limits,
            ),
            batch.stale_tokens[has_gradient & (tokens == 0) & ~cut],
        ),
    )


def _have_gradient(
    rows: TokenRows,
    rewards: Rewards,
    advantages: NDArray[np.float64],
    algorithm: AlgorithmConfig,
) -> NDArray[np.bool_]:
    """bool `[S]`: what the algorithm learns from if it has a token to train."""
    if algorithm.learns_from_equal_rewards:
        return np.ones(len(advantages), dtype=np.bool_)
    some = _differs(rewards) if algorithm.credit == "episode" else _moved(rows, rewards)
    found = some.repeat(rewards.sizes)
    if algorithm.advantage == "best":
        found &= advantages != 0
    return found | rewards.given


def _with_stale(
    minibatches: Sequence[Minibatch], stale: NDArray[np.int32]
) -> tuple[Minibatch, ...]:
    """The same with answers all of whose tokens are too old in the counts, dealt in turn.

    They have no pass, but without them the others would weigh more than where a mask takes an
    answer out of the loss.

    Args:
        minibatches: of answers with a token to train.
        stale: of each of the others the tokens that are too old; 0 where nothing was sampled.
    """
    stale = stale[stale > 0]
    own = [place for place, one in enumerate(minibatches) if one.sequences]
    counted = list(minibatches)
    for turn, place in enumerate(own):
        dealt, one = stale[turn :: len(own)], minibatches[place]
        counted[place] = replace(
            one, tokens=one.tokens + total(dealt), sequences=one.sequences + len(dealt)
        )
    return tuple(counted)


def advantages_of(rewards: Rewards, algorithm: AlgorithmConfig) -> NDArray[np.float64]:
    """float64 `[S]`, one advantage per trajectory of the batch; 0 for given answers."""
    advantages = np.zeros(len(rewards.values))
    if not algorithm.has_rewards:
        return advantages
    begins = starts(rewards.sizes).tolist()
    cuts = [cut for cut in pairwise(begins) if not rewards.given[slice(*cut)].any()]
    if algorithm.decoupled:
        named = [rewards.named[first:last] for first, last in cuts]
        weights = list(algorithm.decoupled.values())
        advantages[~rewards.given] = np.concatenate([*gdpo_advantages(named, weights), []])
        return advantages
    values, tokens = rewards.values.tolist(), rewards.tokens.tolist()
    groups = [values[first:last] for first, last in cuts]
    if algorithm.by_token:  # `credit` continues from these
        found = [group_advantages(own, algorithm.advantage) for own in groups]
    else:
        counts = [tokens[first:last] for first, last in cuts]
        found = batch_advantages(groups, counts, algorithm.advantage)
    advantages[~rewards.given] = [one for own in found for one in own]
    return advantages


def _by_turn(rows: TokenRows, rewards: Rewards) -> tuple[TokenRows, NDArray[np.float64]]:
    """The rows with advantages of turns in place of returns, and the means of each row's."""
    own = np.split(rows.turn_return, starts(rows.turns)[1:-1])
    found: list[NDArray[np.float64]] = []
    for first, end in pairwise(starts(rewards.sizes).tolist()):
        given = rewards.given[first:end].any()
        group = own[first:end]
        found += [0.0 * one for one in group] if given else turn_advantages(group)
    means = np.array([one.mean() for one in found])
    return replace(rows, turn_return=np.concatenate([*found, []])), means


def _moved(rows: TokenRows, rewards: Rewards) -> NDArray[np.bool_]:
    """Which groups have a turn with an advantage; `rows` have these in place of returns."""
    turns = np.split(rows.turn_return != 0, starts(rows.turns)[starts(rewards.sizes)][1:-1])
    return np.array([one.any() for one in turns[: len(rewards.sizes)]], dtype=np.bool_)


def _differs(rewards: Rewards) -> NDArray[np.bool_]:
    """bool `[G]`: the rewards of a group are not all equal."""
    if not len(rewards.values):
        return np.zeros(len(rewards.sizes), dtype=np.bool_)
    values = np.column_stack([rewards.values, rewards.named])
    begins = starts(rewards.sizes)[:-1]
    lowest = np.minimum.reduceat(values, begins)
    return np.asarray((lowest != np.maximum.reduceat(values, begins)).any(axis=1))


def _members(batch: TrainBatch) -> tuple[Ints, Ints]:
    """int64 `[S]` twice: the group of each trajectory, and its index in the group."""
    sizes = batch.group_sizes
    within = np.arange(total(sizes)) - starts(sizes)[:-1].repeat(sizes)
    return batch.group_ids.repeat(sizes), within


def _shaped(batch: TrainBatch, algorithm: AlgorithmConfig) -> NDArray[np.float64]:
    if algorithm.overlong_limit is None:
        return batch.rewards
    limit, buffer = algorithm.overlong_limit, algorithm.overlong_buffer
    # What tools wrote into an episode is not the policy's.
    lengths = (batch.rows.trained() + batch.stale_tokens).tolist()
    return batch.rewards + np.array([overlong_penalty(one, limit, buffer) for one in lengths])


def _check(
    batch: TrainBatch, algorithm: AlgorithmConfig, longest: int | None, vocabulary: int
) -> None:
    def field(place: Any) -> str:
        return f"batch.groups[{_members(batch)[0][place]}]"

    needed, rows = algorithm.smallest_group, batch.rows
    given = batch.given[starts(batch.group_sizes)[:-1]] if len(batch.given) else batch.given
    small = np.flatnonzero((batch.group_sizes < needed) & ~given)
    if len(small):
        fix = f"A group needs {needed} trajectories for advantage {algorithm.advantage}."
        name = f"batch.groups[{batch.group_ids[small[0]]}]"
        raise InvalidInput(name, int(batch.group_sizes[small[0]]), fix)
    negative = np.flatnonzero(batch.rewards < 0)
    if algorithm.advantage == "maxrl" and len(negative):
        fix = "advantage maxrl divides by the mean reward: none may be negative."
        raise InvalidInput(field(negative[0]), float(batch.rewards[negative[0]]), fix)
    empty = np.flatnonzero(rows.prompt == 0)
    if len(empty):
        raise InvalidInput(field(empty[0]), "an empty prompt", "A prompt needs at least one token.")
    long = np.flatnonzero(rows.lengths > (longest or np.inf))
    if len(long):
        fix = (
            f"The model's rotary frequencies change beyond {longest} tokens: set the servers' "
            "max_model_len to at most that."
        )
        raise InvalidInput(field(long[0]), f"{rows.lengths[long[0]]} tokens", fix)
    for place in _extremes(rows):
        token = int(rows.ids[place])
        if not 0 <= token < vocabulary:
            row = np.searchsorted(starts(rows.lengths), place, side="right") - 1
            fix = f"Token ids of this model are 0 to {vocabulary - 1}."
            raise InvalidInput(field(row), token, fix)


def _extremes(rows: TokenRows) -> Sequence[int]:
    """Places of the smallest and the largest token id."""
    return (int(rows.ids.argmin()), int(rows.ids.argmax())) if len(rows.ids) else ()
