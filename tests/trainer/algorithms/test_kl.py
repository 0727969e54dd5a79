"""KL penalties and their gradients against numpy, written from the formulas alone."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from services.protocol.run.algorithm import AlgorithmConfig
from services.protocol.run.kl import KlConfig
from services.trainer.algorithms.losses.aggregation import denominator, kl_weight, token_shares
from services.trainer.algorithms.losses.kl import kl_in_reward
from services.trainer.algorithms.losses.losses import policy_losses
from services.trainer.algorithms.losses.tokens import ScoredTokens


def drawn() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(3)
    current = draw.uniform(-4, -0.1, 9)
    return {
        "current": current,
        "behaviour": current + draw.normal(0, 0.3, 9),
        "proximal": current + draw.normal(0, 0.2, 9),
        "reference": current + draw.normal(0, 0.8, 9),
        "advantage": draw.normal(0, 1, 9),
    }


def computed(case: dict[str, np.ndarray], **settings: Any) -> tuple[np.ndarray, np.ndarray]:
    """Loss and its gradient, token by token."""
    flat = {name: torch.tensor(values) for name, values in case.items()}
    flat["current"].requires_grad_()
    tokens = ScoredTokens(sequence=torch.tensor([0] * 4 + [1] * 5), sequences=2, **flat)
    losses = policy_losses(tokens, AlgorithmConfig(**settings)).tokens.loss
    losses.sum().backward()
    return losses.detach().numpy(), tokens.current.grad.numpy()


VALUES = {
    "k1": (lambda d: d, lambda d: np.ones_like(d)),
    "k2": (lambda d: d * d / 2, lambda d: d),
    "k3": (lambda d: np.exp(-d) - 1 + d, lambda d: 1 - np.exp(-d)),
}
"""Value and derivative by `d = current - reference`."""


@pytest.mark.parametrize("anchor", ["behaviour", "proximal"])
@pytest.mark.parametrize(
    ("estimator", "weighted"), [("k2", False), ("k3", False), ("k1", True), ("k3", True)]
)
def test_the_penalty_is_added_to_the_loss_of_each_token(estimator, weighted, anchor) -> None:
    case = drawn()
    kl = {"coefficient": 0.4, "estimator": estimator, "weighted": weighted}
    plain, plain_slope = computed(case, ratio_anchor=anchor)
    loss, slope = computed(case, ratio_anchor=anchor, kl=kl)
    value, derivative = (f(case["current"] - case["reference"]) for f in VALUES[estimator])
    ratio = np.exp(case["current"] - case["behaviour"]) if weighted else 1.0
    weight_moves = value if weighted else 0.0
    np.testing.assert_allclose(loss - plain, 0.4 * ratio * value, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(
        slope - plain_slope, 0.4 * ratio * (derivative + weight_moves), rtol=1e-12, atol=1e-14
    )


def test_the_policys_loss_and_its_penalty_have_weights_and_means_of_their_own() -> None:
    """Of two answers of 4 and 5 tokens, in a minibatch of 9 tokens and 2 answers."""
    case = drawn()
    flat = {name: torch.tensor(values) for name, values in case.items()}
    sequence = torch.tensor([0] * 4 + [1] * 5)
    tokens = ScoredTokens(sequence=sequence, sequences=2, **flat)
    plain = policy_losses(tokens, AlgorithmConfig()).tokens.loss.numpy()
    kl = {"coefficient": 0.4, "estimator": "k2", "aggregation": "token_mean"}
    algorithm = AlgorithmConfig(loss_coefficient=0.5, aggregation="sequence_mean", kl=kl)
    lengths = torch.tensor([4.0, 5.0], dtype=torch.float64)
    weight = kl_weight(sequence, lengths, 9, 2, algorithm)
    losses = policy_losses(tokens, algorithm, kl_weight=weight)
    shares = token_shares(torch.ones(9).double(), sequence, lengths, "sequence_mean")
    total = (losses.tokens.loss * shares).sum() / denominator(9, 2, algorithm)
    penalty = (case["current"] - case["reference"]) ** 2 / 2
    expected = 0.5 * (plain[:4].mean() + plain[4:].mean()) / 2 + 0.4 * penalty.mean()
    assert total.item() == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(losses.kl_penalty.numpy(), 0.4 * penalty, rtol=1e-12)


@pytest.mark.parametrize("estimator", VALUES)
def test_in_the_reward_a_token_pays_the_estimate_and_no_gradient(estimator) -> None:
    case = drawn()
    sampled = torch.tensor(case["behaviour"], requires_grad=True)
    kl = KlConfig(coefficient=0.3, estimator=estimator, where="reward")
    paid = kl_in_reward(sampled, torch.tensor(case["reference"]), kl)
    expected = 0.3 * VALUES[estimator][0](case["behaviour"] - case["reference"])
    np.testing.assert_allclose(paid.numpy(), expected, rtol=1e-12)
    assert not paid.requires_grad


def test_weighted_stale_tokens_have_the_gradient_of_the_reverse_divergence() -> None:
    """The exact expectation over a policy of four tokens that something else sampled."""
    logits = np.array([0.3, -1.0, 0.7, 0.1])
    behaviour = np.array([0.4, 0.1, 0.2, 0.3])
    reference = np.array([0.1, 0.5, 0.2, 0.2])
    policy = np.exp(logits) / np.exp(logits).sum()
    divergence = (policy * np.log(policy / reference)).sum()
    expected = policy * (np.log(policy / reference) - divergence)
    for estimator in ("k1", "k3"):
        moving = torch.tensor(logits, requires_grad=True)
        tokens = ScoredTokens(
            current=moving.log_softmax(0),
            behaviour=torch.tensor(np.log(behaviour)),
            reference=torch.tensor(np.log(reference)),
            advantage=torch.zeros(4, dtype=torch.float64),
            sequence=torch.arange(4),
            sequences=4,
        )
        kl = KlConfig(coefficient=1.0, estimator=estimator, weighted=True)
        losses = policy_losses(tokens, AlgorithmConfig(kl=kl)).tokens.loss
        (torch.tensor(behaviour) * losses).sum().backward()
        np.testing.assert_allclose(moving.grad.numpy(), expected, rtol=1e-9, atol=1e-12)


def test_the_entropy_bonus_lowers_the_loss_by_the_exact_entropy() -> None:
    logits = np.array([[0.3, -1.0, 0.7], [2.0, 0.0, -0.5]])
    moving = torch.tensor(logits, requires_grad=True)
    logprobs = moving.log_softmax(-1)
    tokens = ScoredTokens(
        current=logprobs[:, 0],
        behaviour=logprobs[:, 0].detach(),
        advantage=torch.zeros(2, dtype=torch.float64),
        sequence=torch.tensor([0, 1]),
        sequences=2,
        entropy=-(logprobs.exp() * logprobs).sum(-1),
    )
    loss = policy_losses(tokens, AlgorithmConfig(entropy_bonus=0.25)).tokens.loss
    loss.sum().backward()
    shares = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    entropy = -(shares * np.log(shares)).sum(-1, keepdims=True)
    np.testing.assert_allclose(loss.detach().numpy(), -0.25 * entropy[:, 0], rtol=1e-12)
    expected = 0.25 * shares * (np.log(shares) + entropy)
    np.testing.assert_allclose(moving.grad.numpy(), expected, rtol=1e-9)


def test_a_policy_far_from_its_reference_stays_finite_in_float32() -> None:
    for estimator in ("k2", "k3"):
        current = torch.tensor([-200.0, -0.1], requires_grad=True)
        tokens = ScoredTokens(
            current=current,
            behaviour=torch.tensor([-0.1, -200.0]),
            reference=torch.tensor([-0.1, -200.0]),
            advantage=torch.ones(2),
            sequence=torch.zeros(2, dtype=torch.int64),
            sequences=1,
        )
        algorithm = AlgorithmConfig(kl={"coefficient": 1.0, "estimator": estimator})
        loss = policy_losses(tokens, algorithm).tokens.loss
        loss.sum().backward()
        assert loss.isfinite().all()
        assert current.grad.isfinite().all()
        assert max(loss.tolist()) > math.exp(5)


@pytest.mark.parametrize(("estimator", "expected"), [("k2", 60.0), ("k3", 1.0)])
def test_a_policy_that_has_left_its_reference_far_behind_is_still_pulled_back(
    estimator, expected
) -> None:
    """Where the reference gives a token e^-60 of the policy's probability: d = 60."""
    current = torch.tensor([-0.1], requires_grad=True)
    tokens = ScoredTokens(
        current=current,
        behaviour=current.detach(),
        reference=torch.tensor([-60.1]),
        advantage=torch.zeros(1),
        sequence=torch.zeros(1, dtype=torch.int64),
        sequences=1,
    )
    algorithm = AlgorithmConfig(kl={"coefficient": 1.0, "estimator": estimator})
    policy_losses(tokens, algorithm).tokens.loss.sum().backward()
    assert current.grad.tolist() == pytest.approx([expected], rel=1e-6)


def test_a_penalty_without_reference_logprobs_is_refused() -> None:
    case = drawn()
    del case["reference"]
    with pytest.raises(ValueError, match="reference"):
        computed(case, kl={"coefficient": 0.1})


@pytest.mark.parametrize(
    ("given", "fix"),
    [
        ({"kl": {"coefficient": 0.1, "estimator": "k1"}}, "zero in expectation"),
        ({"kl": {"coefficient": 0.1, "where": "reward", "weighted": True}}, "where: loss"),
        ({"kl": {"coefficient": 0.1, "where": "reward", "aggregation": "token_mean"}}, "where: l"),
        ({"kl": {"aggregation": "token_mean"}}, "coefficient above 0"),
        ({"kl": {"coefficient": -0.1}}, "greater than or equal"),
        ({"gamma": 0.9}, "reinforce_plus_plus"),
        ({"mask_truncated": True, "kl": {"coefficient": 0.1, "where": "reward"}}, "group's mean"),
    ],
)
def test_penalties_that_would_not_do_what_they_say_are_refused(given, fix) -> None:
    with pytest.raises(ValueError, match=fix):
        AlgorithmConfig(**given)
