"""Advantages by token against sums written out from the paper."""

import numpy as np
import pytest
import torch

from services.trainer.algorithms.advantages.gae import gae

LENGTHS = (4, 1, 6, 2)


def by_definition(
    rewards: np.ndarray, values: np.ndarray, gamma: float, lam: float
) -> tuple[list[float], list[float]]:
    """Equation 16 as the sum that it is, of one answer."""
    after = np.append(values[1:], 0.0)
    errors = rewards + gamma * after - values
    count = len(rewards)
    advantages = [
        sum((gamma * lam) ** k * errors[t + k] for k in range(count - t)) for t in range(count)
    ]
    return advantages, [a + v for a, v in zip(advantages, values, strict=True)]


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (1.0, 0.95), (0.9, 0.8), (0.99, 0.0)])
def test_advantages_and_returns_are_the_sums_of_the_paper(gamma, lam) -> None:
    draw = np.random.default_rng(1)
    rewards = [draw.normal(size=n) for n in LENGTHS]
    values = [draw.normal(size=n) for n in LENGTHS]
    sequence = torch.tensor([i for i, n in enumerate(LENGTHS) for _ in range(n)])
    advantages, returns = gae(
        torch.tensor(np.concatenate(rewards)), torch.tensor(np.concatenate(values)), sequence,
        gamma, lam,
    )  # fmt: skip
    expected = [by_definition(r, v, gamma, lam) for r, v in zip(rewards, values, strict=True)]
    flat = [[x for one in expected for x in one[part]] for part in (0, 1)]
    np.testing.assert_allclose(advantages.numpy(), flat[0], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(returns.numpy(), flat[1], rtol=1e-12, atol=1e-12)


def test_sequences_need_not_be_numbered_from_zero_without_gaps() -> None:
    rewards = torch.tensor([0.0, 1.0, 5.0])
    advantages, _ = gae(rewards, torch.zeros(3), torch.tensor([1, 1, 4]), 0.5, 1.0)
    assert advantages.tolist() == [0.5, 1.0, 5.0]


def test_without_values_lambda_one_gives_discounted_rewards_to_come() -> None:
    rewards = torch.tensor([1.0, 0.0, 2.0])
    advantages, returns = gae(rewards, torch.zeros(3), torch.tensor([0, 0, 0]), 0.5, 1.0)
    assert advantages.tolist() == returns.tolist() == [1.5, 1.0, 2.0]
