"""Losses against hand-computed values and analytic gradients."""

import math

import pytest
import torch

from services.protocol.run.algorithm import AlgorithmConfig
from services.trainer.algorithms.corrections.correction import correct
from services.trainer.algorithms.losses.clip import clipped_surrogate
from services.trainer.algorithms.losses.dppo import dppo_loss
from services.trainer.algorithms.losses.kl import kl_from_sampled
from services.trainer.algorithms.losses.losses import policy_losses
from services.trainer.algorithms.losses.sapo import sapo_loss
from services.trainer.algorithms.losses.tokens import ScoredTokens


def ratios(*values: float) -> torch.Tensor:
    """Logprobs that have these ratios to an anchor of 0."""
    return torch.tensor(values, dtype=torch.float64).log().requires_grad_()


def zeros(count: int) -> torch.Tensor:
    return torch.zeros(count, dtype=torch.float64)


def scored(
    current: torch.Tensor,
    behaviour: torch.Tensor,
    proximal: torch.Tensor | None,
    advantage: torch.Tensor,
) -> ScoredTokens:
    """All of one sequence."""
    return ScoredTokens(
        current=current,
        behaviour=behaviour,
        proximal=proximal,
        advantage=advantage,
        sequence=torch.zeros(len(current), dtype=torch.int64),
        sequences=1,
    )


def test_the_clip_takes_the_pessimistic_side() -> None:
    # ratio, advantage -> by hand: min(r A, clip(r) A), negated, clip to [0.8, 1.28]
    current = ratios(1.5, 1.5, 0.5, 0.5, 1.1)
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0, 2.0], dtype=torch.float64)
    losses = clipped_surrogate(current, zeros(5), advantages, 0.2, 0.28, None)
    assert losses.loss.tolist() == pytest.approx([-1.28, 1.5, -0.5, 0.8, -2.2])
    assert losses.clipped_high.tolist() == [1, 0, 0, 0, 0]
    assert losses.clipped_low.tolist() == [0, 0, 0, 1, 0]


def test_a_clipped_token_has_no_gradient_and_others_have_minus_ratio_times_advantage() -> None:
    current = ratios(1.5, 1.5, 0.5, 0.5, 1.1)
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0, 2.0], dtype=torch.float64)
    clipped_surrogate(current, zeros(5), advantages, 0.2, 0.28, None).loss.sum().backward()
    assert current.grad is not None
    assert current.grad.tolist() == pytest.approx([0.0, 1.5, -0.5, 0.0, -2.2])


def test_the_upper_clip_is_wider_than_the_lower_one() -> None:
    advantages = torch.ones(2, dtype=torch.float64)
    losses = clipped_surrogate(ratios(1.25, 1.3), zeros(2), advantages, 0.2, 0.28, None)
    assert losses.loss.tolist() == pytest.approx([-1.25, -1.28])


def test_the_dual_clip_bounds_a_bad_token_that_has_become_likely() -> None:
    """Without it that token is all of a step's gradient, and clipping the norm takes the rest."""
    grown = torch.tensor([15.0, 15.0, 0.5, 0.0], dtype=torch.float64, requires_grad=True)
    advantages = torch.tensor([-1.0, 1.0, -1.0, -1.0], dtype=torch.float64)
    losses = clipped_surrogate(grown, zeros(4), advantages, 0.2, 0.28, 3.0)
    losses.loss.sum().backward()
    assert losses.loss.tolist() == pytest.approx([3.0, -1.28, math.exp(0.5), 1.0])
    assert grown.grad is not None
    assert grown.grad.tolist() == pytest.approx([0.0, 0.0, math.exp(0.5), 1.0])
    assert losses.clipped_high.tolist() == [1, 1, 0, 0]


def test_on_policy_the_gradient_is_the_policy_gradient() -> None:
    current = torch.tensor([-0.3, -2.0], dtype=torch.float64, requires_grad=True)
    advantages = torch.tensor([0.7, -1.1], dtype=torch.float64)
    for anchor in ("behaviour", "proximal"):
        current.grad = None
        algorithm = AlgorithmConfig(ratio_anchor=anchor)
        same = current.detach()
        tokens = scored(current, same, same, advantages)
        policy_losses(tokens, algorithm).tokens.loss.sum().backward()
        assert current.grad is not None
        assert current.grad.tolist() == pytest.approx([-0.7, 1.1])


def test_a_zero_advantage_has_no_gradient_wherever_the_ratio_is() -> None:
    current = ratios(0.1, 1.0, 9.0)
    clipped_surrogate(current, zeros(3), zeros(3), 0.2, 0.28, None).loss.sum().backward()
    assert current.grad is not None
    assert current.grad.tolist() == [0.0, 0.0, 0.0]


def test_truncated_weights_are_capped_and_counted() -> None:
    ratio = torch.tensor([4.0, 1.5, 0.1], dtype=torch.float64)
    corrected = correct(ratio, AlgorithmConfig(ratio_anchor="proximal", mismatch_cap=2.0))
    assert corrected.weight.tolist() == pytest.approx([2.0, 1.5, 0.1])
    assert corrected.truncated.tolist() == [1, 0, 0]
    assert corrected.masked.tolist() == [0, 0, 0]


def test_a_weight_can_be_truncated_from_below_too() -> None:
    ratio = torch.tensor([4.0, 1.5, 0.1], dtype=torch.float64)
    algorithm = AlgorithmConfig(ratio_anchor="proximal", mismatch_cap=2.0, mismatch_floor=0.5)
    corrected = correct(ratio, algorithm)
    assert corrected.weight.tolist() == pytest.approx([2.0, 1.5, 0.5])
    assert corrected.truncated.tolist() == [1, 0, 1]


def test_dppo_bounds_the_change_of_a_probability_and_not_of_a_ratio() -> None:
    # probabilities before and after: a rare token grows tenfold, a likely one loses a quarter
    before = torch.tensor([0.01, 0.5, 0.8, 0.8, 0.01], dtype=torch.float64)
    after = torch.tensor([0.1, 0.7, 0.6, 0.6, 0.1], dtype=torch.float64)
    advantages = torch.tensor([1.0, 1.0, -1.0, 1.0, -1.0], dtype=torch.float64)
    current = after.log().requires_grad_()
    losses = dppo_loss(current, before.log(), advantages, 0.15, 0.15, 3.0)
    losses.loss.sum().backward()
    assert losses.loss.tolist() == pytest.approx([-10.0, 0.0, 0.0, -0.75, 3.0])
    assert current.grad is not None
    assert current.grad.tolist() == pytest.approx([-10.0, 0.0, 0.0, -0.75, 0.0])
    assert losses.clipped_high.tolist() == [0, 1, 0, 0, 1]
    assert losses.clipped_low.tolist() == [0, 0, 1, 0, 0]


def test_the_gate_of_sapo_closes_as_a_squared_hyperbolic_secant() -> None:
    current = ratios(1.0, 3.0, 3.0, 0.2)
    advantages = torch.tensor([2.0, 1.0, -1.0, 1.0], dtype=torch.float64)
    losses = sapo_loss(current, zeros(4), advantages, 1.0, 1.05)
    losses.loss.sum().backward()
    assert losses.loss[0].item() == pytest.approx(-4.0)  # 4 sigmoid(0) is 2
    assert current.grad is not None
    weights = [1.0, math.cosh(1.0) ** -2, math.cosh(1.05) ** -2, math.cosh(0.4) ** -2]
    ratio = [1.0, 3.0, 3.0, 0.2]
    by_hand = [-a * r * w for a, r, w in zip(advantages.tolist(), ratio, weights, strict=True)]
    assert current.grad.tolist() == pytest.approx(by_hand)


def test_off_policy_masking_takes_bad_answers_alone_and_counts_them() -> None:
    # three answers of two tokens: bad and drifted, bad and near, good and drifted
    current = torch.tensor([-3.0, -1.0] * 3, dtype=torch.float64, requires_grad=True)
    behaviour = torch.tensor([-1.0, -1.1, -2.9, -1.0, -1.0, -1.1], dtype=torch.float64)
    tokens = ScoredTokens(
        current=current,
        behaviour=behaviour,
        advantage=torch.tensor([-1.0] * 4 + [1.0] * 2, dtype=torch.float64),
        sequence=torch.tensor([0, 0, 1, 1, 2, 2]),
        sequences=3,
    )
    losses = policy_losses(tokens, AlgorithmConfig(sequence_mask={"negative_kl": 0.5}))
    assert losses.corrected is not None
    assert losses.corrected.masked.tolist() == [1, 1, 0, 0, 0, 0]
    losses.tokens.loss.sum().backward()
    assert current.grad is not None
    assert [one == 0 for one in current.grad.tolist()] == [True, True, *[False] * 4]


def test_decoupled_clips_around_proximal_and_weighs_by_the_mismatch() -> None:
    behaviour = zeros(2)
    proximal = ratios(1.5, 4.0).detach()
    current = (proximal + torch.tensor([1.1, 2.0], dtype=torch.float64).log()).requires_grad_()
    advantages = torch.ones(2, dtype=torch.float64)
    algorithm = AlgorithmConfig(ratio_anchor="proximal", mismatch_cap=2.0)
    losses = policy_losses(scored(current, behaviour, proximal, advantages), algorithm).tokens
    # weight 1.5 x ratio 1.1; weight 4 capped to 2 x ratio 2 clipped to 1.28
    assert losses.loss.tolist() == pytest.approx([-1.5 * 1.1, -2.0 * 1.28])
    losses.loss.sum().backward()
    assert current.grad is not None
    assert current.grad.tolist() == pytest.approx([-1.5 * 1.1, 0.0])


def test_anchored_at_behaviour_the_proximal_logprobs_do_not_matter() -> None:
    current, behaviour = ratios(1.1, 0.7), zeros(2)
    advantages = torch.tensor([1.0, -1.0], dtype=torch.float64)
    algorithm = AlgorithmConfig(ratio_anchor="behaviour")
    without, with_proximal = (
        policy_losses(scored(current, behaviour, proximal, advantages), algorithm).tokens.loss
        for proximal in (None, behaviour + 3)
    )
    assert without.tolist() == with_proximal.tolist()
    assert without.tolist() == pytest.approx([-1.1, 0.8])


def test_decoupled_without_proximal_logprobs_is_refused() -> None:
    with pytest.raises(ValueError, match="proximal"):
        policy_losses(
            scored(ratios(1.0), zeros(1), None, zeros(1)), AlgorithmConfig(ratio_anchor="proximal")
        )


def test_the_kl_estimate_is_exact_in_expectation_and_never_negative() -> None:
    behaviour = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    current = torch.tensor([0.2, 0.2, 0.6], dtype=torch.float64)
    estimate = kl_from_sampled(behaviour.log(), current.log())
    assert (estimate >= 0).all()
    exact = sum(b * math.log(b / c) for b, c in zip(behaviour, current, strict=True))
    assert float((behaviour * estimate).sum()) == pytest.approx(float(exact))
