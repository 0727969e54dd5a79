"""The gradient of every component of the loss, by central differences in float64."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from services.protocol.run.algorithm import AlgorithmConfig
from services.protocol.run.distillation import DistillationConfig
from services.trainer.algorithms.advantages.distillation import distillation_advantage
from services.trainer.algorithms.losses.clip import clipped_surrogate
from services.trainer.algorithms.losses.cross_entropy import cross_entropy
from services.trainer.algorithms.losses.losses import policy_losses
from services.trainer.algorithms.losses.tokens import ScoredTokens
from services.trainer.algorithms.losses.value_loss import value_loss
from tests.trainer.algorithms.test_distillation import TEACHER, divergence

Objective = Callable[[Tensor], Tensor]
TOKENS, IDS = 6, 5


def drawn(seed: int, *size: int) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


LOGITS = drawn(0, TOKENS, IDS)
SAID = torch.tensor([0, 3, 1, 4, 4, 2])


def said(logits: Tensor) -> Tensor:
    """Logprobs of the tokens that were sampled."""
    return logits.log_softmax(-1).gather(1, SAID[:, None])[:, 0]


def by_differences(objective: Objective, at: Tensor) -> Tensor:
    found, step = torch.empty_like(at), 1e-6
    for place in range(at.numel()):
        moved = []
        for sign in (1, -1):
            changed = at.clone()
            changed.view(-1)[place] += sign * step
            moved.append(objective(changed).item())
        found.view(-1)[place] = (moved[0] - moved[1]) / (2 * step)
    return found


def gradient(objective: Objective, at: Tensor) -> Tensor:
    moving = at.clone().requires_grad_()
    objective(moving).backward()
    assert moving.grad is not None
    return moving.grad


def assert_slopes(objective: Objective, at: Tensor) -> None:
    found = gradient(objective, at)
    assert found.abs().max() > 1e-3
    torch.testing.assert_close(found, by_differences(objective, at), rtol=1e-6, atol=1e-8)


def beside_the_policy(logits: Tensor, **algorithm: Any) -> Tensor:
    """A loss whose advantages are 0, so that only what is added to it is left."""
    current, logprobs = said(logits), logits.log_softmax(-1)
    tokens = ScoredTokens(
        current=current,
        behaviour=said(LOGITS) + 0.3 * drawn(1, TOKENS),
        reference=said(LOGITS) + 0.8 * drawn(2, TOKENS),
        entropy=-(logprobs.exp() * logprobs).sum(-1),
        advantage=torch.zeros(TOKENS, dtype=torch.float64),
        sequence=torch.tensor([0, 0, 0, 1, 1, 1]),
        sequences=2,
    )
    return policy_losses(tokens, AlgorithmConfig(**algorithm)).tokens.loss.sum()


@pytest.mark.parametrize(
    ("estimator", "weighted"),
    [("k2", False), ("k3", False), ("k1", True), ("k2", True), ("k3", True)],
)
def test_of_the_kl_penalty(estimator: str, weighted: bool) -> None:
    kl = {"coefficient": 0.4, "estimator": estimator, "weighted": weighted}
    assert_slopes(lambda logits: beside_the_policy(logits, kl=kl), LOGITS)


def test_of_the_entropy_bonus() -> None:
    assert_slopes(lambda logits: beside_the_policy(logits, entropy_bonus=0.25), LOGITS)


def test_of_given_answers() -> None:
    given = torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0, 1.0], dtype=torch.float64)
    assert_slopes(lambda logits: cross_entropy(said(logits), given), LOGITS)
    by_hand = sum(-said(LOGITS)[place].item() for place in (0, 1, 3, 5))
    assert cross_entropy(said(LOGITS), given).item() == pytest.approx(by_hand, rel=1e-12)


@pytest.mark.parametrize("clip", [None, 0.2])
def test_of_the_critic(clip: float | None) -> None:
    held, returns = drawn(3, 40), drawn(4, 40)
    values = held + 0.4 * drawn(5, 40)
    assert_slopes(lambda moved: value_loss(moved, held, returns, clip).loss.sum(), values)


def test_of_a_dual_clip_that_acts() -> None:
    """At ratios on both sides of 3, away from the corners, where there is no slope."""
    current = torch.tensor([0.4, 2.9, 3.1, 9.0] * 2, dtype=torch.float64).log()
    advantages = torch.tensor([-1.0] * 4 + [0.7] * 4, dtype=torch.float64)

    def objective(moved: Tensor) -> Tensor:
        nothing = torch.zeros_like(moved)
        return clipped_surrogate(moved, nothing, advantages, 0.2, 0.28, 3.0).loss.sum()

    assert_slopes(objective, current)
    assert gradient(objective, current)[:4].tolist() == pytest.approx([0.0, 2.9, 0.0, 0.0])


@pytest.mark.parametrize(
    "how",
    [
        {"divergence": "reverse_kl"},
        {"divergence": "jensen_shannon", "beta": 0.2},
        {"divergence": "jensen_shannon", "beta": 0.8},
    ],
)
def test_of_a_teacher_it_is_the_slope_of_the_divergence_itself(how: dict[str, Any]) -> None:
    """The policy gradient, in expectation over every token that the policy could sample."""
    distillation = DistillationConfig(teacher="t", **how)
    start = drawn(6, len(TEACHER))

    def surrogate(logits: Tensor) -> Tensor:
        logprobs = logits.log_softmax(0)
        acted = logprobs.detach()
        advantage = distillation_advantage(acted, TEACHER.log(), distillation)
        return -(acted.exp() * advantage * logprobs).sum()

    expected = by_differences(
        lambda logits: divergence(logits.softmax(0), TEACHER, distillation), start
    )
    torch.testing.assert_close(gradient(surrogate, start), expected, rtol=1e-6, atol=1e-8)
