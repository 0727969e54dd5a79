"""Advantages against numbers worked out by hand."""

import math

import pytest

from services.protocol.run.algorithm import AlgorithmConfig
from services.trainer.algorithms.advantages.advantages import group_advantages


def test_grpo_divides_by_the_unbiased_standard_deviation() -> None:
    # mean 0.25, squared distances 3 * 0.0625 + 0.5625 = 0.75, over 3: std 0.5
    advantages = group_advantages([1.0, 0.0, 0.0, 0.0], "grpo")
    assert advantages == pytest.approx([1.5] + [-0.5] * 3, rel=1e-7)


def test_rewards_that_differ_by_rounding_alone_are_not_blown_up() -> None:
    assert group_advantages([0.3, 0.1 + 0.2], "grpo") == pytest.approx([0.0, 0.0], abs=1e-7)


def test_dr_grpo_only_subtracts_the_mean() -> None:
    assert group_advantages([3.0, 1.0], "dr_grpo") == pytest.approx([1.0, -1.0], rel=1e-12)


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


@pytest.mark.parametrize("kind", ["grpo", "dr_grpo", "rloo", "reinforce_plus_plus_baseline"])
def test_a_group_of_one_is_refused_where_its_mean_is_the_baseline(kind: str) -> None:
    with pytest.raises(ValueError, match="at least two"):
        group_advantages([1.0], kind)
    assert AlgorithmConfig(advantage=kind).smallest_group == 2


@pytest.mark.parametrize("kind", ["reinforce_plus_plus", "gae"])
def test_a_group_of_one_is_enough_without_a_baseline_of_the_group(kind: str) -> None:
    assert group_advantages([0.7], kind) == [0.7]
    assert AlgorithmConfig(advantage=kind).smallest_group == 1
