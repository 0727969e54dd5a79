"""Credit assignment: advantages that depend on a critic, a discount, a penalty or entropies."""

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from services.protocol.run.algorithm import AlgorithmConfig
from services.protocol.run.distillation import DistillationConfig
from services.trainer.algorithms.advantages.distillation import distillation_advantage
from services.trainer.algorithms.advantages.gae import gae
from services.trainer.algorithms.advantages.reinforce_plus_plus import VARIANCE_FLOOR
from services.trainer.algorithms.advantages.top_entropy import of_high_entropy
from services.trainer.algorithms.losses.kl import kl_in_reward
from services.trainer.batch.collate import MicroBatch
from services.trainer.batch.rank_batch import Rewards, Rows
from services.trainer.batch.step_plan import advantages_of


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A micro-batch and the values of its tokens before the first update.

    It stays on the host but for its own passes: all micro-batches of a step together are large.

    Attributes:
        rows: that it is made of.
        micro: as collated, with its advantages.
        proximal: `[N]`, proximal logprobs, where the algorithm wants them.
        entropy: `[N]`, of the policy before the first update, where tokens are chosen by it.
        reference: `[N]`, reference logprobs, where there is a reference.
        kl_penalty: `[N]`, what a KL penalty takes from the reward of each token.
        values: `[N]`, the critic's, where there is one.
        returns: `[N]`, what the critic learns.
    """

    rows: Rows
    micro: MicroBatch
    proximal: Tensor | None = None
    entropy: Tensor | None = None
    reference: Tensor | None = None
    kl_penalty: Tensor | None = None
    values: Tensor | None = None
    returns: Tensor | None = None

    def to(self, device: torch.device) -> "Prepared":
        """The same on another device."""
        moved: dict[str, Any] = {
            name: value.to(device)
            for name, value in vars(self).items()
            if isinstance(value, Tensor | MicroBatch)
        }
        return replace(self, **moved)

    @property
    def acted(self) -> Tensor:
        """`[N]`, logprobs of the policy that sampled, as which the ratio's anchor is taken."""
        return self.micro.behaviour if self.proximal is None else self.proximal

    @property
    def scored_entropy(self) -> Tensor:
        """`entropy`, which rounding can make a little negative, at least 0."""
        assert self.entropy is not None, "it is scored where tokens are chosen by it"
        return self.entropy.float().clamp(min=0.0)

    def learned(self) -> tuple[Tensor, Tensor]:
        """Values and returns, which there are with a critic."""
        if self.values is None or self.returns is None:
            raise RuntimeError("a critic was asked to learn from tokens that it had not scored")
        return self.values, self.returns


Work = list[list[Prepared]]
"""This rank's micro-batches by minibatch."""


def assign_credit(
    work: Work, rewards: Rewards | None, algorithm: AlgorithmConfig, counts: bool
) -> Work:
    """Work out the advantages that values, a discount, a penalty or a teacher change. Collective.

    Where an estimator gives an answer one advantage, the answer's reward is lowered by the sum
    of its penalties. Where it goes by token, each token pays its own, the last one earns the
    reward, and advantages are normalised over the tokens of the whole batch, all ranks'.

    Args:
        work: of this rank.
        rewards: of all ranks' trajectories, which there are with a penalty in the reward.
        algorithm: of the run.
        counts: whether no other rank counts the same micro-batches.
    """
    if algorithm.kl.in_reward:
        work = [[_penalised(one, algorithm) for one in several] for several in work]
    if algorithm.by_token:
        work = _normalised([[_by_token(one, algorithm) for one in several] for several in work])
    elif algorithm.kl.in_reward:
        assert rewards is not None, "the plan sends them with a penalty in the reward"
        work = _by_answer(work, rewards, algorithm, counts)
    if algorithm.distillation is not None:
        taught = algorithm.distillation
        work = [[_taught(one, taught) for one in several] for several in work]
    if algorithm.top_entropy < 1:
        work = _of_high_entropy(work, algorithm.top_entropy)
    return work


def _penalised(one: Prepared, algorithm: AlgorithmConfig) -> Prepared:
    assert one.reference is not None, "a KL penalty loads a reference"
    return replace(one, kl_penalty=kl_in_reward(one.acted, one.reference, algorithm.kl))


def _taught(one: Prepared, distillation: DistillationConfig) -> Prepared:
    """The rewards' advantages and the teacher's, weighted: the latter is not normalised."""
    if one.micro.teacher is None:  # it only fills a forward pass
        return one
    advantage = distillation.rewards * one.micro.advantage
    pull = distillation_advantage(one.acted, one.micro.teacher, distillation)
    advantage = advantage + distillation.coefficient * pull.to(advantage)
    return replace(one, micro=replace(one.micro, advantage=advantage))


def _by_answer(work: Work, rewards: Rewards, algorithm: AlgorithmConfig, counts: bool) -> Work:
    penalties = torch.zeros(len(rewards.values), dtype=torch.float64)
    for one in (one for several in work for one in several if len(one.rows) and counts):
        assert one.kl_penalty is not None, "worked out before"
        sums = torch.zeros(len(one.rows), dtype=torch.float64)
        sums.index_add_(0, one.micro.row, one.kl_penalty.double())
        penalties[torch.from_numpy(one.rows.place)] = sums
    paid = rewards.values - _all_sum(penalties).numpy()
    advantages = torch.from_numpy(advantages_of(replace(rewards, values=paid), algorithm))
    return [[_with(one, advantages) for one in several] for several in work]


def _with(one: Prepared, advantages: Tensor) -> Prepared:
    """The same with the advantages of the batch's trajectories."""
    if not len(one.rows):
        return one
    of_rows = advantages[torch.from_numpy(one.rows.place)].to(one.micro.advantage)
    advantage = of_rows[one.micro.row]
    return replace(one, micro=replace(one.micro, advantage=advantage))


def _by_token(one: Prepared, algorithm: AlgorithmConfig) -> Prepared:
    """Rewards to come of each token; `advantage` is what the whole answer earned."""
    micro = one.micro
    last = torch.ones_like(micro.row, dtype=torch.bool)
    last[:-1] = micro.row[1:] != micro.row[:-1]
    rewards = torch.where(last, micro.advantage, 0.0)
    if one.kl_penalty is not None:
        rewards = rewards - one.kl_penalty
    # Without a critic the baseline is 0.
    values = torch.zeros_like(rewards) if one.values is None else one.values
    gae_lambda = 1.0 if one.values is None else algorithm.gae_lambda
    advantages, returns = gae(rewards, values, micro.row, algorithm.gamma, gae_lambda)
    return replace(
        one,
        micro=replace(micro, advantage=advantages.to(micro.advantage)),
        returns=returns.to(micro.advantage),
    )


def _normalised(work: Work) -> Work:
    """Mean 0 and variance 1 over the trained tokens of all ranks.

    A value that is not finite stays as it is and is left out of mean and variance, so that the
    guard names only its own group. Ranks that share micro-batches all count them, which changes
    neither mean nor variance.
    """
    micros = [one.micro for several in work for one in several]
    if not micros:
        return work
    values = torch.cat([micro.advantage for micro in micros]).double()
    weight = torch.cat([micro.weight for micro in micros]).double() * values.isfinite()
    kept = values.nan_to_num(0.0, 0.0, 0.0)
    total, count = _all_sum(torch.stack([(kept * weight).sum(), weight.sum()])).unbind()
    mean = total / count.clamp(min=1.0)
    squares = _all_sum((weight * (kept - mean).square()).sum())
    scale = (squares / count.clamp(min=1.0)).clamp(min=VARIANCE_FLOOR).rsqrt()

    def normal(one: Prepared) -> Prepared:
        advantage = ((one.micro.advantage.double() - mean) * scale).to(one.micro.advantage)
        return replace(one, micro=replace(one.micro, advantage=advantage))

    return [[normal(one) for one in several] for several in work]


def _of_high_entropy(work: Work, share: float) -> Work:
    """The same with an advantage for the `share` of all ranks' trained tokens alone that has the
    highest entropy, whatever the ranks and micro-batches."""
    trained = [one.scored_entropy[one.micro.weight > 0] for several in work for one in several]
    threshold = _largest_with(torch.cat([*trained, torch.zeros(0)]), share)

    def chosen(one: Prepared) -> Prepared:
        advantage = of_high_entropy(one.micro.advantage, one.scored_entropy, threshold)
        return replace(one, micro=replace(one.micro, advantage=advantage))

    return [[chosen(one) for one in several] for several in work]


def _largest_with(values: Tensor, share: float) -> float:
    """The largest float32 that a `share` of all ranks' `values` reaches, none negative. Collective.

    Such floats are ordered as their bits are, which are found one by one, by counts alone: ranks
    need not send each other their values.
    """
    bits = values.view(torch.int32)
    wanted = share * _all_sum(torch.tensor(len(bits))).item()
    found = 0
    for place in reversed(range(31)):
        if _all_sum((bits >= found + (1 << place)).sum()).item() >= wanted:
            found += 1 << place
    return torch.tensor(found, dtype=torch.int32).view(torch.float32).item()


def _all_sum(values: Tensor) -> Tensor:
    dist.all_reduce(values)
    return values
