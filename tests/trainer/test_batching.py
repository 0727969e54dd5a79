"""Plans of minibatches and micro-batches."""

import random
from dataclasses import replace

import pytest

from services.protocol.errors import InvalidInput
from services.protocol.run.algorithm import AlgorithmConfig
from services.protocol.trainer import ScoredTrajectory, TrainBatch, TrainGroup
from services.trainer.batch.batching import (
    Row,
    left_out,
    plan_microbatches,
    plan_minibatches,
    rows_of,
)


def lengths(count: int, seed: int = 0) -> list[int]:
    draw = random.Random(seed)
    return [draw.randint(1, 60) for _ in range(count)]


@pytest.mark.parametrize("world_size", [1, 2, 3, 5])
def test_every_row_is_planned_exactly_once(world_size: int) -> None:
    plan = plan_microbatches(lengths(41), world_size, 128)
    assert sorted(row for rank in plan for micro in rank for row in micro) == list(range(41))


@pytest.mark.parametrize("count", [1, 2, 7, 40])
def test_all_ranks_run_the_same_number_of_passes(count: int) -> None:
    plan = plan_microbatches(lengths(count), 3, 64)
    assert len({len(rank) for rank in plan}) == 1
    assert all(any(rank[i] for rank in plan) for i in range(len(plan[0])))  # no pass for nothing


@pytest.mark.parametrize("padded", [True, False])
def test_a_row_above_the_budget_stands_alone(padded: bool) -> None:
    sizes = [*lengths(30), 500]
    plan = plan_microbatches(sizes, 2, 100, padded=padded)
    assert [micro for rank in plan for micro in rank if 30 in micro] == [(30,)]


def test_packed_microbatches_fit_and_are_as_few_as_can_be() -> None:
    sizes = lengths(200)
    plan = plan_microbatches(sizes, 3, 256)
    loads = [sum(sizes[row] for row in micro) for rank in plan for micro in rank]
    assert max(loads) <= 256
    assert len(plan[0]) <= 1 + sum(sizes) // (3 * 256) + 1


def test_ranks_wait_little_for_each_other_in_every_pass() -> None:
    sizes = lengths(200)
    for micros in zip(*plan_microbatches(sizes, 4, 512), strict=True):
        loads = [sum(sizes[row] for row in micro) for micro in micros]
        assert min(loads) > 0.95 * max(loads)


def test_padded_microbatches_fit() -> None:
    sizes = [*lengths(30), 500]
    for rank in plan_microbatches(sizes, 2, 100, padded=True):
        for micro in rank:
            padded = len(micro) * max((sizes[row] for row in micro), default=0)
            assert padded <= 100 or len(micro) == 1


def test_tokens_are_balanced_over_ranks() -> None:
    sizes = lengths(64)
    loads = [
        sum(sizes[row] for micro in rank for row in micro)
        for rank in plan_microbatches(sizes, 4, 4096)
    ]
    assert max(loads) - min(loads) <= max(sizes)


def rows_with_tokens(make_trajectory, count: int) -> list[Row]:
    return [
        Row(group_id=i, index=0, trajectory=make_trajectory([1], [2] * (1 + i % 9)), advantage=1.0)
        for i in range(count)
    ]


def test_minibatches_and_their_denominators_do_not_depend_on_ranks(make_trajectory) -> None:
    rows = rows_with_tokens(make_trajectory, 37)

    def plan(world_size: int, max_tokens: int) -> list[tuple[int, list[int]]]:
        made = plan_minibatches(
            rows, count=3, world_size=world_size, max_tokens=max_tokens, seed="0/1"
        )
        return [
            (one.tokens, sorted(r for rank in one.ranks for micro in rank for r in micro))
            for one in made
        ]

    for minibatch in plan_minibatches(rows, count=3, world_size=2, max_tokens=20, seed="0/1"):
        assert minibatch.sequences == sum(len(m) for rank in minibatch.ranks for m in rank)
    assert plan(1, 1000) == plan(2, 20) == plan(5, 7)
    assert sum(tokens for tokens, _ in plan(1, 1000)) == sum(row.trained_tokens for row in rows)
    assert sorted(row for _, chosen in plan(1, 1000) for row in chosen) == list(range(37))


def test_another_seed_makes_another_split(make_trajectory) -> None:
    rows = rows_with_tokens(make_trajectory, 20)
    first, second = (
        plan_minibatches(rows, count=2, world_size=1, max_tokens=1000, seed=seed)
        for seed in ("0/1", "0/2")
    )
    assert set(first[0].ranks[0][0]) != set(second[0].ranks[0][0])


def test_fewer_rows_than_minibatches_make_fewer_minibatches(make_trajectory) -> None:
    rows = rows_with_tokens(make_trajectory, 2)
    plan = plan_minibatches(rows, count=5, world_size=2, max_tokens=100, seed="0/1")
    assert len(plan) == 2
    assert all(minibatch.tokens > 0 for minibatch in plan)


def group_of(make_trajectory, rewards: list[float], **kwargs) -> TrainGroup:
    members = [
        ScoredTrajectory(trajectory=make_trajectory([1, 2], [3, 4], **kwargs), reward=reward)
        for reward in rewards
    ]
    return TrainGroup(group_id=7, trajectories=tuple(members))


def batch_of(*groups: TrainGroup) -> TrainBatch:
    return TrainBatch(run_id="run", step=1, groups=groups)


def test_groups_of_equal_rewards_are_not_in_the_denominator(make_trajectory) -> None:
    batch = batch_of(
        group_of(make_trajectory, [0.0, 0.0, 0.0]), group_of(make_trajectory, [0.0, 1.0])
    )
    rows = rows_of(batch, AlgorithmConfig(advantage="dr_grpo"))
    assert [row.advantage for row in rows] == [-0.5, 0.5]


def test_a_trajectory_without_trained_tokens_counts_for_its_group_only(make_trajectory) -> None:
    quiet = ScoredTrajectory(trajectory=make_trajectory([1], [2], mask=[0]), reward=1.0)
    loud = ScoredTrajectory(trajectory=make_trajectory([1], [2]), reward=0.0)
    batch = batch_of(TrainGroup(group_id=0, trajectories=(quiet, loud)))
    rows = rows_of(batch, AlgorithmConfig(advantage="dr_grpo"))
    assert [row.advantage for row in rows] == [-0.5]


def test_a_group_of_one_is_refused_by_name(make_trajectory) -> None:
    with pytest.raises(InvalidInput, match=r"groups\[7\]"):
        rows_of(batch_of(group_of(make_trajectory, [1.0])), AlgorithmConfig())


def test_answers_to_many_prompts_need_no_siblings_where_the_batch_is_the_baseline(
    make_trajectory,
) -> None:
    batch = batch_of(group_of(make_trajectory, [1.0]), group_of(make_trajectory, [0.0]))
    rows = rows_of(batch, AlgorithmConfig(advantage="reinforce_plus_plus"))
    assert [row.advantage for row in rows] == [1.0, -1.0]


def test_the_batch_is_normalised_over_the_tokens_that_are_trained(make_trajectory) -> None:
    cut = replace(make_trajectory([1], [2] * 9), finish_reason="length")
    members = [
        (cut, -5.0),
        (make_trajectory([1], [2, 3, 4]), 1.0),
        (make_trajectory([1], [2]), 0.0),
    ]
    group = TrainGroup(
        group_id=0,
        trajectories=tuple(ScoredTrajectory(trajectory=t, reward=r) for t, r in members),
    )
    algorithm = AlgorithmConfig(advantage="reinforce_plus_plus", mask_truncated=True)
    advantages = [row.advantage for row in rows_of(batch_of(group), algorithm)]
    # tokens 1, 1, 1, 0: mean 3/4, variance 3/16
    assert advantages == pytest.approx([0.25 / (3 / 16) ** 0.5, -0.75 / (3 / 16) ** 0.5])


def test_reinforce_plus_plus_learns_from_groups_of_equal_rewards(make_trajectory) -> None:
    batch = batch_of(group_of(make_trajectory, [1.0, 1.0]), group_of(make_trajectory, [0.0, 0.0]))
    rows = rows_of(batch, AlgorithmConfig(advantage="reinforce_plus_plus"))
    assert [row.advantage for row in rows] == [1.0, 1.0, -1.0, -1.0]
    assert rows_of(batch, AlgorithmConfig()) == ()


def test_tokens_that_are_too_old_have_a_cause_of_their_own(make_trajectory) -> None:
    half = replace(make_trajectory([1], [2, 3]), loss_mask=(0, 1))
    old = replace(make_trajectory([1], [2, 3, 4]), loss_mask=(0, 0, 0))
    members = [(half, 0.0, 1), (old, 1.0, 3), (make_trajectory([1], [2]), 1.0, 0)]
    group = TrainGroup(
        group_id=0,
        trajectories=tuple(
            ScoredTrajectory(trajectory=t, reward=r, stale_tokens=s) for t, r, s in members
        ),
    )
    algorithm = AlgorithmConfig()
    rows = rows_of(batch_of(group), algorithm)
    assert left_out(batch_of(group), rows, algorithm) == {
        "left_out_truncated": 0.0,
        "left_out_equal_rewards": 0.0,
        "left_out_stale": 4 / 6,
        "left_out_fraction": 4 / 6,
    }


def test_masked_truncated_answers_still_count_for_their_group(make_trajectory) -> None:
    cut = replace(make_trajectory([1], [2, 3]), finish_reason="length")
    whole = make_trajectory([1], [2])
    members = [(cut, 0.0), (whole, 1.0), (whole, 0.0)]
    group = TrainGroup(
        group_id=0,
        trajectories=tuple(ScoredTrajectory(trajectory=t, reward=r) for t, r in members),
    )
    algorithm = AlgorithmConfig(advantage="dr_grpo", mask_truncated=True)
    rows = rows_of(batch_of(group), algorithm)
    assert [row.advantage for row in rows] == pytest.approx([2 / 3, -1 / 3])
    assert left_out(batch_of(group), rows, algorithm) == {
        "left_out_truncated": 2 / 4,
        "left_out_equal_rewards": 0.0,
        "left_out_stale": 0.0,
        "left_out_fraction": 2 / 4,
    }
    equal = batch_of(group, group_of(make_trajectory, [1.0, 1.0]))
    shares = left_out(equal, rows_of(equal, algorithm), algorithm)
    assert shares["left_out_equal_rewards"] > 0
    assert sum(shares.values()) == pytest.approx(2 * shares["left_out_fraction"])


def test_long_answers_lose_reward_before_advantages_are_taken(make_trajectory) -> None:
    answers = [make_trajectory([1], [2] * length) for length in (4, 8)]
    group = TrainGroup(
        group_id=0,
        trajectories=tuple(ScoredTrajectory(trajectory=one, reward=1.0) for one in answers),
    )
    algorithm = AlgorithmConfig(advantage="dr_grpo", overlong_limit=10, overlong_buffer=4)
    rows = rows_of(batch_of(group), algorithm)
    assert [row.advantage for row in rows] == pytest.approx([0.25, -0.25])  # 8 is half-way: -0.5
