"""Reference and critic on real FSDP2 ranks beside plain transformers, autograd and numpy."""

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from services.protocol.trainer import RunStart
from tests.batches import GroupBatch
from tests.trainer.test_learner import assert_same_metrics

KL_IN_REWARD = {"coefficient": 0.2, "estimator": "k1", "where": "reward"}
PPO = {
    "preset": "ppo",
    "kl": KL_IN_REWARD,
    "gamma": 0.95,
    "gae_lambda": 0.9,
    "critic": {"learning_rate": 3e-3, "value_clip": 0.05, "grad_clip": 0.5},
}
GRPO = {"preset": "grpo", "kl": {"coefficient": 0.3}}


class Plain:
    """One trajectory at a time, logits of whole sequences, sums written from the papers."""

    def __init__(self, model: Path, start: RunStart) -> None:
        self.start, self.algorithm = start, start.algorithm
        self.policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        self.reference = copy.deepcopy(self.policy)
        self.trunk = copy.deepcopy(self.policy.base_model)
        self.head = torch.nn.Linear(self.policy.config.hidden_size, 1)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)
        self.critic = torch.nn.ModuleList([self.trunk, self.head])
        settings = {"betas": (0.9, 0.95), "eps": self.algorithm.epsilon, "weight_decay": 0.0}
        self.steps = torch.optim.AdamW(
            self.policy.parameters(), lr=self.algorithm.learning_rate, **settings
        )
        self.critic_steps = torch.optim.AdamW(
            self.critic.parameters(), lr=self.algorithm.critic.learning_rate, **settings
        )

    def logprobs(self, model: Any, one: Any) -> torch.Tensor:
        prompt, response = one.prompt_token_ids, one.response_token_ids
        ids = torch.tensor([prompt + response])
        logits = model(input_ids=ids).logits[0, :-1] / self.start.temperature
        scored = logits.log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]
        return scored[len(prompt) - 1 :][torch.tensor(one.loss_mask).bool()]

    def values(self, one: Any) -> torch.Tensor:
        ids = torch.tensor([one.prompt_token_ids + one.response_token_ids])
        states = self.trunk(input_ids=ids).last_hidden_state[0, :-1]
        places = torch.tensor(one.loss_mask).bool()
        return self.head(states)[len(one.prompt_token_ids) - 1 :, 0][places]

    def step(self, batch: GroupBatch) -> dict[str, float]:
        every = [(group, one) for group in batch.groups for one in group.trajectories]
        behaviour = [
            np.array(one.trajectory.behaviour_logprobs)[np.array(one.trajectory.loss_mask) > 0]
            for _, one in every
        ]
        with torch.no_grad():
            reference = [self.logprobs(self.reference, one.trajectory) for _, one in every]
        if self.algorithm.advantage == "gae":
            return self.step_with_critic(every, behaviour, reference)
        advantages = []
        for group, one in every:
            rewards = np.array([member.reward for member in group.trajectories])
            advantages.append((one.reward - rewards.mean()) / rewards.std(ddof=1))
        total = torch.zeros(())
        for (_, one), b, q, a in zip(every, behaviour, reference, advantages, strict=True):
            current = self.logprobs(self.policy, one.trajectory)
            penalty = torch.exp(q - current) - (q - current) - 1
            own = self.surrogate(current, b, torch.tensor(a)) + 0.3 * penalty
            total = total + own.mean() / len(every)
        return self.updated(total)

    def step_with_critic(self, every: Any, behaviour: Any, reference: Any) -> dict[str, float]:
        with torch.no_grad():
            held = [self.values(one.trajectory).double().numpy() for _, one in every]
        advantages, returns = [], []
        decay = self.algorithm.gamma * self.algorithm.gae_lambda
        for (_, one), b, q, v in zip(every, behaviour, reference, held, strict=True):
            rewards = -0.2 * (b - q.double().numpy())
            rewards[-1] += one.reward
            errors = rewards + self.algorithm.gamma * np.append(v[1:], 0) - v
            own = [sum(decay**k * errors[t + k] for k in range(len(v) - t)) for t in range(len(v))]
            advantages.append(np.array(own))
            returns.append(np.array(own) + v)
        flat, targets = np.concatenate(advantages), np.concatenate(returns)
        tokens = len(flat)
        total, loss = torch.zeros(()), torch.zeros(())
        for (_, one), b, a, v, r in zip(every, behaviour, advantages, held, returns, strict=True):
            current = self.logprobs(self.policy, one.trajectory)
            whitened = torch.tensor((a - flat.mean()) / flat.std())
            total = total + self.surrogate(current, b, whitened).sum() / tokens
            value, held_value, aim = self.values(one.trajectory), torch.tensor(v), torch.tensor(r)
            near = held_value + (value - held_value).clamp(-0.05, 0.05)
            worse = torch.maximum((value - aim) ** 2, (near - aim) ** 2)
            loss = loss + 0.5 * worse.sum() / tokens
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.critic.parameters(), 0.5)
        self.critic_steps.step()
        self.critic_steps.zero_grad()
        explained = 1 - (targets - np.concatenate(held)).var() / targets.var()
        return self.updated(total) | {
            "value_loss": loss.item(),
            "critic_grad_norm": norm.item(),
            "explained_variance": explained,
            "kl_penalty": 0.2 * (np.concatenate(behaviour) - torch.cat(reference).numpy()).mean(),
        }

    def surrogate(self, current: torch.Tensor, behaviour: Any, advantage: Any) -> torch.Tensor:
        ratio = torch.exp(current - torch.tensor(behaviour))
        return -torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)

    def updated(self, loss: torch.Tensor) -> dict[str, float]:
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.policy.parameters(), 1.0)
        self.steps.step()
        self.steps.zero_grad()
        return {"loss": loss.item(), "grad_norm": norm.item()}


@pytest.mark.parametrize("algorithm", [GRPO, PPO], ids=["GRPO with KL", "PPO"])
def test_steps_equal_plain_autograd_and_the_papers_sums(
    rank_groups, tiny_model, make_batch, make_start, algorithm
) -> None:
    start, ranks = make_start(temperature=0.9, **algorithm), rank_groups[2]
    ranks.load(tiny_model)
    ranks.call("start_run", start, 0)
    plain = Plain(tiny_model, start)
    for step in (1, 2, 3):
        batch = make_batch(step, groups=3)
        measured = ranks.call("train", batch, step - 1, step)[0].metrics
        expected = plain.step(batch)
        assert {name: measured[name] for name in expected} == pytest.approx(expected, rel=3e-4)
    assert measured["kl_reference"] > 1e-4  # by now it has something to penalise


@pytest.mark.parametrize("size", [1, 2])
def test_the_critic_goes_on_from_a_checkpoint_on_any_number_of_ranks(
    rank_groups, tiny_model, make_batch, make_start, size
) -> None:
    start, writer, reader = make_start(**PPO), rank_groups[2], rank_groups[size]
    writer.load(tiny_model)
    writer.call("start_run", start, 0)
    writer.call("train", make_batch(1, groups=3), 0, 1)
    writer.call("save", 1)
    expected = writer.call("train", make_batch(2, groups=3), 1, 2)[0]
    reader.load(tiny_model)
    assert reader.call("start_run", start, 7)[0].step == 1
    continued = reader.call("train", make_batch(2, groups=3), 1, 2)[0]
    assert abs(expected.metrics["value_mean"]) > 1e-3
    assert_same_metrics(continued.metrics, expected.metrics)


def test_while_the_critic_warms_up_the_policy_stays_as_it_is(
    rank_groups, tiny_model, make_batch, make_start
) -> None:
    ranks = rank_groups[2]
    ranks.load(tiny_model)
    critic = {"learning_rate": 1e-3, "warmup_steps": 2}
    start = make_start(preset="ppo", critic=critic, warmup_steps=2)
    held = ranks.call("start_run", start, 0)[0].digests
    digests, values = [], []
    for step in (1, 2, 3):
        done = ranks.call("train", make_batch(step, groups=3), step - 1, step)[0]
        digests.append(done.digests)
        values.append(done.metrics["value_mean"])
    assert digests[:2] == [held, held]
    assert digests[2] != held
    assert values[0] == 0.0
    assert values[1] != values[2] != 0.0
