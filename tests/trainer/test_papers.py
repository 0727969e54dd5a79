"""Whole train steps on two real FSDP2 ranks, in small passes, against the papers.

What is expected is written from the papers alone, in float64, with sums over the whole batch
and no code of the trainer. The batch has what goes wrong: an answer without tokens, one that is
masked out, one cut off, a group with a single answer that counts, one of equal rewards, and a
log ratio of tens of nats.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from services.protocol.train_batch import ScoredTrajectory, TrainGroup
from services.protocol.trajectory import Trajectory
from tests.batches import GroupBatch

LONGEST = 24


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Its trained tokens alone; `current` has a gradient."""

    reward: float
    cut: bool
    current: Tensor
    behaviour: Tensor
    reference: Tensor

    @property
    def tokens(self) -> int:
        return len(self.current)


Groups = list[list[Answer]]
Objective = Callable[[Groups], Tensor]


@pytest.fixture
def batch(make_batch) -> GroupBatch:
    first, equal, few, single = make_batch(1, groups=4).groups
    one, *others = first.trajectories
    # A wild log ratio at an answer that is better than its siblings.
    wild = replace(
        one.trajectory, behaviour_logprobs=(-70.0, *one.trajectory.behaviour_logprobs[1:])
    )
    first = replace(first, trajectories=(ScoredTrajectory(trajectory=wild, reward=2.0), *others))
    few = _changed(few, {0: without_tokens, 1: masked_out, 2: cut_off})
    single = _changed(single, {0: without_tokens, 1: masked_out, 3: masked_out})
    return GroupBatch(run_id="run", step=1, groups=(first, _of_one_reward(equal), few, single))


def _changed(group: TrainGroup, by: dict[int, Callable[[Trajectory], Trajectory]]) -> TrainGroup:
    members = [
        replace(one, trajectory=by.get(index, lambda same: same)(one.trajectory))
        for index, one in enumerate(group.trajectories)
    ]
    return replace(group, trajectories=tuple(members))


def _of_one_reward(group: TrainGroup) -> TrainGroup:
    members = tuple(replace(one, reward=0.3) for one in group.trajectories)
    return replace(group, trajectories=members)


def without_tokens(one: Trajectory) -> Trajectory:
    return replace(one, response_token_ids=(), behaviour_logprobs=(), loss_mask=(), spans=())


def masked_out(one: Trajectory) -> Trajectory:
    return replace(one, loss_mask=(0,) * len(one.loss_mask))


def cut_off(one: Trajectory) -> Trajectory:
    return replace(one, finish_reason="length")


def scored(policy: Any, one: Trajectory, temperature: float) -> Tensor:
    prompt = len(one.prompt_token_ids)
    ids = torch.tensor([one.prompt_token_ids + one.response_token_ids])
    logs = (policy(input_ids=ids).logits[0, :-1] / temperature).log_softmax(-1)
    mask = torch.tensor(one.loss_mask, dtype=torch.bool)
    return logs.gather(-1, ids[0, 1:, None])[prompt - 1 :, 0][mask]


def seen(policy: Any, batch: GroupBatch, temperature: float) -> Groups:
    groups = []
    for group in batch.groups:
        answers = []
        for one in group.trajectories:
            mask = np.array(one.trajectory.loss_mask, dtype=bool)
            current = scored(policy, one.trajectory, temperature)
            answers.append(
                Answer(
                    reward=one.reward,
                    cut=one.trajectory.finish_reason == "length",
                    current=current,
                    behaviour=torch.tensor(np.array(one.trajectory.behaviour_logprobs)[mask]),
                    reference=current.detach(),  # the first step starts at the reference
                )
            )
        groups.append(answers)
    return groups


def surrogate(ratio: Tensor, advantage: Any, low: float, high: float) -> Tensor:
    bounded = ratio.clamp(1 - low, 1 + high)
    return -torch.minimum(ratio * advantage, bounded * advantage)


def compared(groups: Groups, spread: bool = True) -> list[tuple[Answer, float]]:
    """GRPO's advantage, or without the spread Dr. GRPO's, of each answer that has tokens."""
    found = []
    for group in groups:
        rewards = np.array([one.reward for one in group])
        if rewards.min() == rewards.max():
            continue
        scale = rewards.std(ddof=1) if spread else 1.0
        advantages = (rewards - rewards.mean()) / scale
        found += [(one, a) for one, a in zip(group, advantages, strict=True) if one.tokens]
    return found


def by_token(pairs: list[tuple[Answer, Any]], loss: Callable[[Answer, Any], Tensor]) -> Tensor:
    return sum(loss(*pair).sum() for pair in pairs) / sum(one.tokens for one, _ in pairs)


def by_answer(pairs: list[tuple[Answer, Any]], loss: Callable[[Answer, Any], Tensor]) -> Tensor:
    return sum(loss(*pair).mean() for pair in pairs) / len(pairs)


def ratio(one: Answer) -> Tensor:
    return (one.current - one.behaviour).exp()


def grpo(groups: Groups) -> Tensor:
    """2402.03300, equation 3, without its KL penalty."""
    return by_answer(compared(groups), lambda one, a: surrogate(ratio(one), a, 0.2, 0.2))


def dr_grpo(groups: Groups) -> Tensor:
    """2503.20783, section 3.2."""
    pairs = compared(groups, spread=False)
    total = sum(surrogate(ratio(one), a, 0.2, 0.2).sum() for one, a in pairs)
    return total / (len(pairs) * LONGEST)


def dapo(groups: Groups) -> Tensor:
    """2503.14476: equations 8, 9 and 13, and overlong filtering."""
    limit, buffer = 20, 12

    def shaped(one: Answer) -> Answer:
        lost = min(1.0, max(0.0, (one.tokens - (limit - buffer)) / buffer))
        return replace(one, reward=one.reward - lost)

    pairs = compared([[shaped(one) for one in group] for group in groups])
    pairs = [(one, a) for one, a in pairs if not one.cut]
    return by_token(pairs, lambda one, a: surrogate(ratio(one), a, 0.2, 0.28))


def gspo(groups: Groups) -> Tensor:
    """2507.18071, equations 5 and 7."""

    def loss(one: Answer, a: float) -> Tensor:
        return surrogate((one.current - one.behaviour).mean().exp(), a, 0.1, 0.2)

    return by_answer(compared(groups), loss)


def cispo(groups: Groups) -> Tensor:
    """2506.13585, equations 4 and 5; the paper bounds the weight from above alone."""
    return by_token(
        compared(groups), lambda one, a: -ratio(one).detach().clamp(max=5.0) * a * one.current
    )


def rloo(groups: Groups) -> Tensor:
    """2402.14740, section 3: each whole answer against the mean of the others."""
    total, answers = torch.zeros(()), 0
    for group in groups:
        rewards = [one.reward for one in group]
        if len(set(rewards)) == 1:
            continue
        for index, one in enumerate(group):
            others = rewards[:index] + rewards[index + 1 :]
            if one.tokens:
                total = total - (one.reward - np.mean(others)) * one.current.sum()
                answers += 1
    return total / answers


def sapo(groups: Groups) -> Tensor:
    """2511.20347: a gate for each sign of the advantage."""

    def loss(one: Answer, a: float) -> Tensor:
        tau = 1.0 if a > 0 else 1.05
        return -a * torch.sigmoid(tau * (ratio(one) - 1)) * 4 / tau

    return by_answer(compared(groups), loss)


def maxrl(groups: Groups) -> Tensor:
    """2602.02710: distances from the group's mean, divided by it, in PPO's surrogate."""
    means = [np.mean([one.reward for one in group]) for group in groups]
    pairs = [
        (one, one.reward / mean - 1)
        for group, mean in zip(groups, means, strict=True)
        for one in group
        if one.tokens and len({other.reward for other in group}) > 1
    ]
    return by_token(pairs, lambda one, a: surrogate(ratio(one), a, 0.2, 0.2))


def lite_ppo(groups: Groups) -> Tensor:
    """2508.08221: the group's mean, and the deviation of the rewards of all groups."""
    spread = np.std([one.reward for group in groups for one in group], ddof=1)
    pairs = [(one, a / spread) for one, a in compared(groups, spread=False)]
    return by_token(pairs, lambda one, a: surrogate(ratio(one), a, 0.2, 0.2))


def raft(groups: Groups) -> Tensor:
    """2304.06767, algorithm 1: the likelihood of the best answers of each group."""
    best = [
        one
        for group in groups
        for one in group
        if min(other.reward for other in group) < one.reward
        and one.reward == max(other.reward for other in group)
    ]
    return -sum(one.current.sum() for one in best) / sum(one.tokens for one in best)


def off_policy_masked(groups: Groups) -> Tensor:
    """2512.02556, section 3.1: bad answers that have become unlikely count without a loss."""

    def loss(one: Answer, a: float) -> Tensor:
        drift = (one.behaviour - one.current.detach()).mean()
        return surrogate(ratio(one), a, 0.2, 0.2) * (a >= 0 or drift <= 0.2)

    return by_answer(compared(groups), loss)


def normalised(groups: Groups, returns: Callable[[list[Answer]], list[Any]]) -> Tensor:
    """2501.03262: advantages of mean 0 and variance 1 over all tokens, in PPO's surrogate."""
    pairs = [
        (one, np.broadcast_to(value, one.tokens))
        for group in groups
        for one, value in zip(group, returns(group), strict=True)
        if one.tokens
    ]
    flat = np.concatenate([values for _, values in pairs])
    white = [(one, torch.tensor((v - flat.mean()) / flat.std())) for one, v in pairs]
    return by_token(white, lambda one, a: surrogate(ratio(one), a, 0.2, 0.2))


def reinforce_plus_plus(groups: Groups) -> Tensor:
    return normalised(groups, lambda group: [one.reward for one in group])


def reinforce_plus_plus_with_kl(groups: Groups) -> Tensor:
    """Rewards less the KL of each token, summed from each token to the end, discounted."""

    def to_come(one: Answer) -> np.ndarray:
        paid = -0.05 * (one.behaviour - one.reference).numpy()
        paid[-1:] += one.reward
        count = one.tokens
        return np.array(
            [sum(0.9 ** (s - t) * paid[s] for s in range(t, count)) for t in range(count)]
        )

    return normalised(groups, lambda group: [to_come(one) for one in group])


def reinforce_plus_plus_baseline(groups: Groups) -> Tensor:
    def returns(group: list[Answer]) -> list[float]:
        mean = np.mean([one.reward for one in group])
        return [one.reward - mean for one in group]

    return normalised(groups, returns)


def decoupled(weight: Callable[[Tensor], Tensor]) -> Objective:
    """2110.00641 with one minibatch: the ratio is 1 where it is taken, its weight is not."""

    def objective(groups: Groups) -> Tensor:
        def loss(one: Answer, a: float) -> Tensor:
            update = (one.current - one.current.detach()).exp()
            return weight(one.current.detach() - one.behaviour) * surrogate(update, a, 0.2, 0.28)

        return by_token(compared(groups), loss)

    return objective


def truncated_sequence(gap: Tensor) -> Tensor:
    return gap.sum().exp().clamp(max=3.0)


def masked_tokens(gap: Tensor) -> Tensor:
    return gap.exp() * ((gap.exp() >= 0.5) & (gap.exp() <= 2.0))


def masked_by_geometric_mean(gap: Tensor) -> Tensor:
    return ((gap.mean().exp() >= 0.7) & (gap.mean().exp() <= 1.6)).double()


KL = {"coefficient": 0.05, "estimator": "k1", "where": "reward"}
PROXIMAL = {"preset": "dapo", "ratio_anchor": "proximal"}
PAPERS: dict[str, tuple[Objective, dict[str, Any]]] = {
    "GRPO": (grpo, {"preset": "grpo"}),
    "Dr. GRPO": (dr_grpo, {"preset": "dr_grpo", "fixed_length": LONGEST}),
    "DAPO": (
        dapo,
        {"preset": "dapo", "mask_truncated": True, "overlong_limit": 20, "overlong_buffer": 12},
    ),
    "GSPO": (gspo, {"preset": "gspo", "clip_low": 0.1, "clip_high": 0.2}),
    "CISPO": (cispo, {"preset": "cispo"}),
    "SAPO": (sapo, {"preset": "sapo"}),
    "MaxRL": (maxrl, {"preset": "maxrl"}),
    "Lite PPO": (lite_ppo, {"preset": "lite_ppo"}),
    "RAFT": (raft, {"preset": "raft"}),
    "off-policy masking": (
        off_policy_masked,
        {"preset": "grpo", "sequence_mask": {"negative_kl": 0.2}},
    ),
    "RLOO": (rloo, {"preset": "rloo"}),
    "REINFORCE++": (reinforce_plus_plus, {"preset": "reinforce_plus_plus"}),
    "REINFORCE++ with KL": (
        reinforce_plus_plus_with_kl,
        {"preset": "reinforce_plus_plus", "kl": KL, "gamma": 0.9},
    ),
    "REINFORCE++-baseline": (
        reinforce_plus_plus_baseline,
        {"preset": "reinforce_plus_plus_baseline"},
    ),
    "TIS": (decoupled(lambda gap: gap.exp().clamp(max=2.0)), PROXIMAL),
    "TIS of sequences": (
        decoupled(truncated_sequence),
        PROXIMAL | {"mismatch_level": "sequence", "mismatch_cap": 3.0},
    ),
    "IcePop": (
        decoupled(masked_tokens),
        PROXIMAL | {"mismatch_correction": "mask", "mismatch_floor": 0.5},
    ),
    "geometric mask": (
        decoupled(masked_by_geometric_mean),
        PROXIMAL
        | {
            "mismatch_correction": "mask",
            "mismatch_level": "geometric",
            "mismatch_floor": 0.7,
            "mismatch_cap": 1.6,
        },
    ),
}


def relative_gap(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> float:
    """Norm of the difference of two gradients, by that of the second."""
    assert found.keys() == expected.keys()
    squares = [((found[name] - one) ** 2).sum() for name, one in expected.items()]
    return math.sqrt(sum(squares) / sum((one**2).sum() for one in expected.values()))


@pytest.fixture(scope="module")
def plain_policy(tiny_model: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float64)


@pytest.fixture
def stepped(rank_groups, tiny_model, make_start, batch):
    """Loss and gradient of a step in the layout that is easiest to get wrong."""

    def step(settings: dict[str, Any]) -> tuple[Any, dict[str, np.ndarray]]:
        ranks = rank_groups[2]
        ranks.load(tiny_model, micro_batch_tokens=60)
        ranks.call("start_run", make_start(temperature=0.9, grad_clip=1e9, **settings), 0)
        return ranks.call("train", batch, 0, 1)[0], ranks.call("first_gradient")[0]

    return step


@pytest.mark.parametrize("name", PAPERS)
def test_a_step_has_the_loss_and_the_gradient_of_the_paper(
    plain_policy, stepped, batch, name
) -> None:
    objective, settings = PAPERS[name]
    loss = objective(seen(plain_policy, batch, 0.9))
    plain_policy.zero_grad()
    loss.backward()
    expected = {name: one.grad.numpy() for name, one in plain_policy.named_parameters()}
    report, gradient = stepped(settings)
    # SAPO's gates of advantages that sum to 0, each about 1, cancel to a loss of a 1e5th.
    assert report.metrics["loss"] == pytest.approx(loss.item(), rel=1e-5, abs=1e-6)
    assert relative_gap(gradient, expected) < 1e-5
