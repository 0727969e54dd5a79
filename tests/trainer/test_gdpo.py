"""GDPO: named rewards, each normalised, against numbers worked out by hand."""

import math

import numpy as np
import pytest

from services.protocol.run.algorithm import AlgorithmConfig
from services.protocol.train_batch import ScoredTrajectory, TrainGroup
from services.protocol.trajectory import PolicySpan, Trajectory
from services.trainer.algorithms.advantages.gdpo import gdpo_advantages
from services.trainer.batch.batching import PassLimits
from services.trainer.batch.step_plan import plan_step
from tests.batches import GroupBatch

ALGORITHM = AlgorithmConfig.model_validate(
    {"advantage": "gdpo", "rewards": {"correct": 1.0, "format": 0.5, "length": 0.0}}
)

TRAJECTORY = Trajectory(
    prompt_token_ids=(1, 2),
    response_token_ids=(3, 4),
    behaviour_logprobs=(-0.5, -0.5),
    loss_mask=(1, 1),
    spans=(PolicySpan(version=1, start=0, end=2, replica_id="replica"),),
    finish_reason="stop",
    text="",
)


def group(group_id: int, named: tuple[tuple[float, float], ...]) -> TrainGroup:
    scored = (ScoredTrajectory(trajectory=TRAJECTORY, reward=1.0, named=one) for one in named)
    return TrainGroup(group_id=group_id, trajectories=tuple(scored))


def test_each_reward_is_normalised_in_its_group_then_weighted_then_divided_over_the_batch() -> None:
    # correct: mean 1/4, std 1/2; format: mean 50, std 200/sqrt(12)
    first = np.array([[1.0, 0.0], [0.0, 100.0], [0.0, 0.0], [0.0, 100.0]])
    # correct is equal and adds nothing; format: mean 1/2, std 1/sqrt(2)
    second = np.array([[1.0, 1.0], [1.0, 0.0]])
    a, b = math.sqrt(3) / 2, 1 / math.sqrt(2)  # 50 / std, and 0.5 / std
    sums = [1.5 - 0.5 * a, -0.5 + 0.5 * a, -0.5 - 0.5 * a, -0.5 + 0.5 * a, 0.5 * b, -0.5 * b]
    std = math.sqrt(math.fsum(one * one for one in sums) / 5)
    found = np.concatenate(gdpo_advantages([first, second], [1.0, 0.5]))
    assert found.tolist() == pytest.approx([one / std for one in sums], rel=1e-6)
    assert math.fsum(found) == pytest.approx(0.0, abs=1e-12)


def test_combinations_that_have_the_same_sum_keep_different_advantages() -> None:
    """The collapse for which the paper was written: rewards of other scales and frequencies."""
    rewards = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [1.0, 1.0]])
    (found,) = gdpo_advantages([rewards], [1.0, 1.0])
    assert found[0] == pytest.approx(found[1])
    uneven = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [0.0, 1.0]])
    (found,) = gdpo_advantages([uneven], [1.0, 1.0])
    assert found.tolist() == pytest.approx([0.0] * 4)
    weighted = gdpo_advantages([uneven], [1.0, 0.5])[0]
    assert weighted[0] > 0 > weighted[1]


def test_a_batch_without_any_difference_has_advantages_of_exactly_zero() -> None:
    (found,) = gdpo_advantages([np.full((10, 2), 0.1)], [1.0, 1.0])
    assert found.tolist() == [0.0] * 10
    assert gdpo_advantages([], [1.0]) == []


def test_a_plan_takes_groups_that_differ_in_one_reward_and_leaves_equal_ones() -> None:
    batch = GroupBatch(
        run_id="run",
        step=1,
        groups=(
            group(1, ((1.0, 0.0), (0.0, 2.0))),
            group(2, ((1.0, 0.0), (1.0, 0.0))),
        ),
    )
    limits = PassLimits(world_size=1, max_tokens=64)
    plan = plan_step(batch.built, ALGORITHM, seed="1", limits=limits, vocabulary=50)
    assert plan.chosen.tolist() == [0, 1]
    # 1/sqrt(2) less half of it for the first; over the batch of two groups, std over four answers
    assert plan.advantages.tolist() == pytest.approx([math.sqrt(1.5), -math.sqrt(1.5)], rel=1e-6)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"advantage": "gdpo"}, "give rewards"),
        ({"rewards": {"correct": 0.0}}, "all weights are 0"),
        ({"rewards": {"Not a name": 1.0}}, "pattern"),
        ({"rewards": {f"r{number}": 1.0 for number in range(9)}}, "at most 8"),
        ({"advantage": "gdpo", "rewards": {"a": 1.0}, "overlong_limit": 5}, "a penalty is none"),
        (
            {
                "advantage": "gdpo",
                "rewards": {"a": 1.0},
                "kl": {"where": "reward", "coefficient": 1.0},
            },
            "a penalty is none",
        ),
    ],
)
def test_what_would_not_be_normalised_is_refused(keys: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        AlgorithmConfig.model_validate(keys)


def test_rewards_of_weight_zero_are_measured_and_not_normalised() -> None:
    assert ALGORITHM.decoupled == {"correct": 1.0, "format": 0.5}
    assert AlgorithmConfig.model_validate({"rewards": {"a": 1.0}}).decoupled == {}
