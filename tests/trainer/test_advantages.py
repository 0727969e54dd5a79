"""Advantages against numbers worked out by hand."""

import itertools
import math

import pytest

from services.protocol.run.algorithm import AlgorithmConfig
from services.trainer.algorithms.advantages.advantages import batch_advantages, group_advantages


def test_grpo_divides_by_the_unbiased_standard_deviation() -> None:
    # mean 0.25, squared distances 3 * 0.0625 + 0.5625 = 0.75, over 3: std 0.5
    advantages = group_advantages([1.0, 0.0, 0.0, 0.0], "grpo")
    assert advantages == pytest.approx([1.5] + [-0.5] * 3, rel=1e-7)


def test_rewards_that_differ_by_rounding_alone_are_not_blown_up() -> None:
    assert group_advantages([0.3, 0.1 + 0.2], "grpo") == pytest.approx([0.0, 0.0], abs=1e-7)


def test_dr_grpo_only_subtracts_the_mean() -> None:
    assert group_advantages([3.0, 1.0], "dr_grpo") == pytest.approx([1.0, -1.0], rel=1e-12)


def test_maxrl_divides_by_the_mean_so_that_a_rare_success_counts_more() -> None:
    # one of four: mean 0.25; three of four: mean 0.75
    assert group_advantages([1.0, 0.0, 0.0, 0.0], "maxrl") == pytest.approx([3.0] + [-1.0] * 3)
    often = group_advantages([1.0, 1.0, 1.0, 0.0], "maxrl")
    assert often == pytest.approx([1 / 3] * 3 + [-1.0])
    assert group_advantages([0.0, 0.0], "maxrl") == [0.0, 0.0]


def test_maxrl_has_the_mean_gradient_of_a_truncated_log_pass_rate() -> None:
    """Over all outcomes of a group of n: `sum_{k < n} (1 - p)^(k - 1) dp` (appendix D)."""
    p, n, mean = 0.3, 4, 0.0
    for outcome in itertools.product((0.0, 1.0), repeat=n):
        chance = math.prod(p if one else 1 - p for one in outcome)
        scores = [1 / p if one else -1 / (1 - p) for one in outcome]  # d log chance / dp
        own = group_advantages(list(outcome), "maxrl")
        mean += chance * sum(a * s for a, s in zip(own, scores, strict=True)) / n
    assert mean == pytest.approx(sum((1 - p) ** k for k in range(n - 1)), rel=1e-12)


def test_lite_ppo_divides_by_the_deviation_of_the_whole_batch() -> None:
    # rewards 1, 0, 1, 1: mean 3/4, squared distances 3/4, over 3: std 1/2
    advantages = batch_advantages([[1.0, 0.0], [1.0, 1.0]], [[1, 9], [2, 2]], "lite_ppo")
    assert advantages == [pytest.approx([1.0, -1.0]), [0.0, 0.0]]
    equal = batch_advantages([[0.3] * 3, [0.3] * 2], [[1] * 3, [1] * 2], "lite_ppo")
    assert equal == [[0.0] * 3, [0.0] * 2]


@pytest.mark.parametrize("kind", ["grpo", "dr_grpo"])
def test_a_group_of_equal_rewards_has_advantages_of_exactly_zero(kind: str) -> None:
    # 0.1 added ten times and divided by ten is not 0.1: rounding must not leak through
    assert group_advantages([0.1] * 10, kind) == [0.0] * 10


@pytest.mark.parametrize("kind", ["grpo", "dr_grpo"])
def test_advantages_of_a_group_sum_to_zero(kind: str) -> None:
    assert math.fsum(group_advantages([0.3, 0.9, 0.2, 0.25, 1.0], kind)) == pytest.approx(
        0.0, abs=1e-12
    )


def test_grpo_ignores_the_scale_of_rewards_and_dr_grpo_does_not() -> None:
    small, large = [0.0, 1.0, 1.0], [0.0, 100.0, 100.0]
    assert group_advantages(small, "grpo") == pytest.approx(
        group_advantages(large, "grpo"), rel=1e-3
    )
    assert group_advantages(large, "dr_grpo") == pytest.approx(
        [100 * a for a in group_advantages(small, "dr_grpo")]
    )


def test_the_best_answers_are_those_with_the_largest_reward_where_rewards_differ() -> None:
    assert group_advantages([0.2, 1.0, -3.0, 1.0], "best") == [0.0, 1.0, 0.0, 1.0]
    assert group_advantages([-1.0, -2.0], "best") == [1.0, 0.0]
    assert group_advantages([1.0, 1.0], "best") == [0.0, 0.0]


@pytest.mark.parametrize("kind", ["grpo", "dr_grpo", "rloo", "maxrl", "lite_ppo", "best"])
def test_a_group_of_one_is_refused_where_its_mean_is_the_baseline(kind: str) -> None:
    with pytest.raises(ValueError, match="at least two"):
        group_advantages([1.0], kind)
    assert AlgorithmConfig(advantage=kind).smallest_group == 2


@pytest.mark.parametrize("kind", ["reinforce_plus_plus", "gae"])
def test_a_group_of_one_is_enough_without_a_baseline_of_the_group(kind: str) -> None:
    assert group_advantages([0.7], kind) == [0.7]
    assert AlgorithmConfig(advantage=kind).smallest_group == 1
