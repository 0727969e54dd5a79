"""Credit by turn and by token, against numbers worked out by hand."""

import numpy as np
import pytest

from services.protocol.run.algorithm import AlgorithmConfig
from services.protocol.train_batch import ScoredTrajectory, TrainGroup
from services.protocol.trajectory import PolicySpan, Trajectory
from services.trainer.algorithms.advantages.grpo import grpo_advantages
from services.trainer.algorithms.advantages.turns import turn_advantages
from services.trainer.batch.batching import PassLimits
from services.trainer.batch.collate import collate
from services.trainer.batch.step_plan import plan_step
from tests.batches import GroupBatch, opened

BY_TURN = AlgorithmConfig(credit="turn")
LIMITS = PassLimits(world_size=1, max_tokens=4096)


def test_a_turn_is_compared_with_the_same_turn_of_the_others() -> None:
    # Rewards by turn: 1 0 1, 0 0 1, and 1 at the first and last turn; sums from each turn on.
    returns = [np.array([2.0, 1.0, 1.0]), np.array([1.0, 1.0, 1.0]), np.array([1.0])]
    first = grpo_advantages(np.array([2.0, 1.0, 1.0]))
    found = [one.tolist() for one in turn_advantages(returns)]
    assert found == [[first[0], 0.0, 0.0], [first[1], 0.0, 0.0], [first[2]]]
    assert first.tolist() == pytest.approx([2 / 3**0.5, -1 / 3**0.5, -1 / 3**0.5])


def test_an_answer_with_fewer_turns_stands_there_with_its_last() -> None:
    found = turn_advantages([np.array([3.0, 2.0]), np.array([1.0])])
    # turn 1: 3 and 1; turn 2: 2 and 1; half a distance over a std of distance / sqrt(2)
    assert found[0].tolist() == pytest.approx([0.5**0.5, 0.5**0.5])
    assert found[1].tolist() == pytest.approx([-(0.5**0.5)])


def test_with_one_reward_at_the_end_it_is_grpo_however_many_turns_there_are() -> None:
    rewards = np.array([1.0, 0.0, 0.25, 0.0])
    whole = grpo_advantages(rewards)
    found = turn_advantages([np.full(n, r) for n, r in zip((1, 3, 2, 5), rewards, strict=True)])
    for own, one in zip(found, whole, strict=True):
        assert own.tolist() == pytest.approx([one] * len(own), rel=1e-12)


def episode(*returns: tuple[int, float], mask: tuple[int, ...]) -> ScoredTrajectory:
    count = len(mask)
    trajectory = Trajectory(
        prompt_token_ids=(1, 2),
        response_token_ids=tuple(range(3, 3 + count)),
        behaviour_logprobs=(-0.5,) * count,
        loss_mask=mask,
        spans=(PolicySpan(version=1, start=0, end=count, replica_id="replica"),),
        finish_reason="stop",
        text="",
    )
    return ScoredTrajectory(trajectory=trajectory, reward=returns[0][1], returns=returns)


def test_tokens_of_each_turn_get_its_advantage_and_equal_groups_none() -> None:
    differs = TrainGroup(
        group_id=1,
        trajectories=(
            episode((2, 1.0), (5, 1.0), mask=(1, 1, 0, 1, 1)),
            episode((1, 1.0), (4, 0.0), mask=(1, 0, 0, 1)),
        ),
    )
    same = TrainGroup(
        group_id=2,
        trajectories=(episode((1, 1.0), (2, 0.5), mask=(1, 1)),) * 2,
    )
    batch = GroupBatch(run_id="run", step=1, groups=(same, differs)).built
    assert [one.returns for group in opened(batch).groups for one in group.trajectories] == [
        one.returns for group in (same, differs) for one in group.trajectories
    ]
    plan = plan_step(batch, BY_TURN, seed="1", limits=LIMITS, vocabulary=50)
    assert plan.chosen.tolist() == [2, 3]
    high = 0.5**0.5
    assert plan.advantages.tolist() == pytest.approx([high / 2, -high / 2])
    found = {}
    for rows in plan.part(0).micro_batches()[0]:
        micro = collate(rows, 1)
        for row, place in enumerate(rows.place.tolist()):
            found[place] = micro.advantage[micro.row == row].tolist()
    assert found[2] == pytest.approx([0.0, 0.0, high, high])
    assert found[3] == pytest.approx([0.0, -high])


def test_a_token_is_compared_with_the_token_at_its_place_in_the_others() -> None:
    # Rewards by token: 0 1 0 1, and 1 0; sums from each on: 2 2 1 1, and 1 0 (0 0).
    longer = episode((1, 2.0), (2, 2.0), (3, 1.0), (4, 1.0), mask=(1, 1, 0, 1))
    shorter = episode((1, 1.0), (2, 0.0), mask=(1, 1))
    group = TrainGroup(group_id=1, trajectories=(longer, shorter))
    batch = GroupBatch(run_id="run", step=1, groups=(group,)).built
    algorithm = AlgorithmConfig(credit="token")
    plan = plan_step(batch, algorithm, seed="1", limits=LIMITS, vocabulary=50)
    ((rows,),) = plan.part(0).micro_batches()
    micro = collate(rows, 1)
    high = 0.5**0.5  # two numbers, whatever their distance; the second token of 2 - 0 as well
    own = {place: row for row, place in enumerate(rows.place.tolist())}
    assert micro.advantage[micro.row == own[0]].tolist() == pytest.approx([high] * 3)
    assert micro.advantage[micro.row == own[1]].tolist() == pytest.approx([-high] * 2)


def test_tokens_of_three_answers_are_normalised_place_by_place() -> None:
    returns = [np.array([1.0, 1.0, 4.0]), np.array([1.0, 2.0]), np.array([1.0, 3.0, 3.0])]
    found = turn_advantages(returns)
    # place 1: all equal; place 2: 1 2 3, deviation 1; place 3: 4 2 3, the second stands at its end
    assert found[0].tolist() == pytest.approx([0.0, -1.0, 1.0])
    assert found[1].tolist() == pytest.approx([0.0, 0.0])
    assert found[2].tolist() == pytest.approx([0.0, 1.0, 0.0])


def test_many_tokens_get_the_same_numbers_as_one_after_the_other() -> None:
    chance = np.random.default_rng(0)
    returns = [chance.normal(size=50) for _ in range(16)]
    found = np.array(turn_advantages(returns))
    alone = [grpo_advantages(np.array([one[place] for one in returns])) for place in range(50)]
    assert np.array_equal(found, np.array(alone).T)


def test_what_credit_by_turn_cannot_go_with_is_refused() -> None:
    for keys in ({"advantage": "rloo"}, {"rewards": {"a": 1.0}}, {"overlong_limit": 5}):
        for credit in ("turn", "token"):
            with pytest.raises(ValueError, match=f"credit: {credit} needs advantage: grpo"):
                AlgorithmConfig.model_validate({"credit": credit} | keys)
