"""The critic's loss against numpy, written from the formula alone."""

import numpy as np
import pytest
import torch

from services.protocol.run.algorithm import AlgorithmConfig
from services.trainer.algorithms.losses.value_loss import value_loss


@pytest.mark.parametrize("clip", [None, 0.2])
def test_the_value_loss_and_its_gradient_are_the_formula(clip: float | None) -> None:
    draw = np.random.default_rng(2)
    held, returns = draw.normal(size=40), draw.normal(size=40)
    values = held + draw.normal(0, 0.4, 40)
    moving = torch.tensor(values, requires_grad=True)
    losses = value_loss(moving, torch.tensor(held), torch.tensor(returns), clip)
    losses.loss.sum().backward()
    plain = (values - returns) ** 2
    expected, slope, clipped = plain, 2 * (values - returns), np.zeros(40)
    if clip is not None:
        near = np.clip(values, held - clip, held + clip)
        bounded = (near - returns) ** 2
        expected = np.maximum(plain, bounded)
        inside = np.abs(values - held) <= clip
        # Where the clipped value is the worse one, it is a constant once out of reach.
        slope = np.where((bounded > plain) & ~inside, 0.0, slope)
        clipped = bounded > plain
        assert 0 < clipped.sum() < 40
    np.testing.assert_allclose(losses.loss.detach().numpy(), expected / 2, rtol=1e-12)
    np.testing.assert_allclose(moving.grad.numpy(), slope / 2, rtol=1e-12, atol=1e-15)
    np.testing.assert_array_equal(losses.clipped.numpy(), clipped)


def test_keys_of_a_critic_that_is_not_there_are_refused() -> None:
    for given in ({"gae_lambda": 1.0}, {"critic": {"learning_rate": 1e-4}}):
        with pytest.raises(ValueError, match="advantage: gae"):
            AlgorithmConfig(**given)
    assert AlgorithmConfig(preset="ppo", gae_lambda=1.0, gamma=0.9).has_critic
