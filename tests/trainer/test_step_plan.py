"""What of a batch carries a gradient, and which rank gets it."""

import pickle
import random
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from services.protocol.errors import InvalidInput
from services.protocol.run.algorithm import AlgorithmConfig
from services.protocol.train_batch import ScoredTrajectory, TokenRows, TrainGroup
from services.trainer.algorithms.losses.aggregation import token_shares
from services.trainer.batch.batching import PassLimits
from services.trainer.batch.collate import collate
from services.trainer.batch.step_plan import StepPlan, plan_step
from tests.batches import GroupBatch, opened


def group_of(make_trajectory, rewards: list[float], **kwargs) -> TrainGroup:
    members = [
        ScoredTrajectory(trajectory=make_trajectory([1, 2], [3, 4], **kwargs), reward=reward)
        for reward in rewards
    ]
    return TrainGroup(group_id=7, trajectories=tuple(members))


def planned(algorithm: AlgorithmConfig, *groups: TrainGroup, vocabulary: int = 100) -> StepPlan:
    batch = GroupBatch(run_id="run", step=1, groups=groups).built
    limits = PassLimits(world_size=2, max_tokens=64)
    return plan_step(batch, algorithm, seed="0/1", limits=limits, vocabulary=vocabulary)


def advantages(algorithm: AlgorithmConfig, *groups: TrainGroup) -> list[float]:
    return planned(algorithm, *groups).advantages.tolist()


def test_groups_of_equal_rewards_are_not_in_the_denominator(make_trajectory) -> None:
    groups = group_of(make_trajectory, [0.0, 0.0, 0.0]), group_of(make_trajectory, [0.0, 1.0])
    plan = planned(AlgorithmConfig(advantage="dr_grpo"), *groups)
    assert plan.advantages.tolist() == [-0.5, 0.5]
    assert plan.chosen.tolist() == [3, 4]
    assert plan.minibatches[0].tokens == 4


def test_of_a_group_the_best_answers_alone_get_a_pass_and_are_counted(make_trajectory) -> None:
    groups = (
        group_of(make_trajectory, [0.5, 1.0, 0.0, 1.0]),
        group_of(make_trajectory, [1.0, 1.0]),
        replace(group_of(make_trajectory, [0.0]), trajectories=(
            replace(group_of(make_trajectory, [0.0]).trajectories[0], given=True),)),
    )  # fmt: skip
    plan = planned(AlgorithmConfig(preset="raft"), *groups)
    assert (plan.chosen.tolist(), plan.advantages.tolist()) == ([1, 3, 6], [1.0, 1.0, 0.0])
    (one,) = plan.minibatches
    assert (one.tokens, one.sequences, one.given_tokens) == (4, 2, 2)
    assert plan.left_out()["left_out_equal_rewards"] == 8 / 14
    pulled = planned(AlgorithmConfig(preset="raft", kl={"coefficient": 0.1}), *groups)
    assert pulled.advantages.tolist() == [0.0, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0]


def test_a_trajectory_without_trained_tokens_counts_for_its_group_only(make_trajectory) -> None:
    quiet = ScoredTrajectory(trajectory=make_trajectory([1], [2], mask=[0]), reward=1.0)
    loud = ScoredTrajectory(trajectory=make_trajectory([1], [2]), reward=0.0)
    group = TrainGroup(group_id=0, trajectories=(quiet, loud))
    assert advantages(AlgorithmConfig(advantage="dr_grpo"), group) == [-0.5]


def test_a_group_of_one_is_refused_by_name(make_trajectory) -> None:
    with pytest.raises(InvalidInput, match=r"groups\[7\]"):
        planned(AlgorithmConfig(), group_of(make_trajectory, [1.0]))


def test_answers_to_many_prompts_need_no_siblings_where_the_batch_is_the_baseline(
    make_trajectory,
) -> None:
    groups = group_of(make_trajectory, [1.0]), group_of(make_trajectory, [0.0])
    algorithm = AlgorithmConfig(advantage="reinforce_plus_plus")
    assert advantages(algorithm, *groups) == [1.0, -1.0]


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
    # tokens 1, 1, 1, 0: mean 3/4, variance 3/16
    expected = [0.25 / (3 / 16) ** 0.5, -0.75 / (3 / 16) ** 0.5]
    assert advantages(algorithm, group) == pytest.approx(expected)


def test_reinforce_plus_plus_learns_from_groups_of_equal_rewards(make_trajectory) -> None:
    groups = group_of(make_trajectory, [1.0, 1.0]), group_of(make_trajectory, [0.0, 0.0])
    algorithm = AlgorithmConfig(advantage="reinforce_plus_plus")
    assert advantages(algorithm, *groups) == [1.0, 1.0, -1.0, -1.0]
    nothing = planned(AlgorithmConfig(), *groups)
    assert nothing.minibatches == ()
    assert len(nothing.part(0).rows) == 0


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
    plan = planned(AlgorithmConfig(), group)
    assert plan.left_out() == {
        "left_out_truncated": 0.0,
        "left_out_equal_rewards": 0.0,
        "left_out_stale": 4 / 6,
        "left_out_fraction": 4 / 6,
    }
    assert [(one.tokens, one.sequences) for one in plan.minibatches] == [(6, 3)]
    micros = [collate(plan.part(rank).rows, 0) for rank in range(2)]
    shares = [token_shares(one.weight, one.row, one.sampled, "sequence_mean") for one in micros]
    assert sorted(float(share) for share in shares) == [0.5, 1.0]


def test_an_answer_that_is_too_old_as_a_whole_counts_as_one_of_which_a_token_is_left(
    make_trajectory,
) -> None:
    fresh = make_trajectory([1], [2, 3])
    cut = replace(fresh, loss_mask=(0, 0), finish_reason="length")
    for left, algorithm in ((1, {}), (0, {}), (1, {"minibatches": 3}), (0, {"minibatches": 3})):
        old = replace(fresh, loss_mask=(0, left))
        members = [(fresh, 1.0, 0), (fresh, 0.0, 0), (fresh, 0.0, 0), (old, 1.0, 2 - left)]
        group = TrainGroup(
            group_id=0,
            trajectories=(
                *(ScoredTrajectory(trajectory=t, reward=r, stale_tokens=s) for t, r, s in members),
                # Left out for another reason: cut off, and nothing sampled.
                ScoredTrajectory(trajectory=cut, reward=0.0, stale_tokens=2),
                ScoredTrajectory(trajectory=make_trajectory([1], [2], mask=[0]), reward=0.0),
            ),
        )
        plan = planned(AlgorithmConfig(mask_truncated=True, **algorithm), group)
        assert sum(one.tokens for one in plan.minibatches) == 8, (left, algorithm)
        assert sum(one.sequences for one in plan.minibatches) == 4, (left, algorithm)
        parts = [plan.part(rank).minibatches for rank in range(2)]
        assert [[one.tokens for one in part] for part in parts] == [
            [one.tokens for one in plan.minibatches]
        ] * 2


def test_masked_truncated_answers_still_count_for_their_group(make_trajectory) -> None:
    cut = replace(make_trajectory([1], [2, 3]), finish_reason="length")
    whole = make_trajectory([1], [2])
    members = [(cut, 0.0), (whole, 1.0), (whole, 0.0)]
    group = TrainGroup(
        group_id=0,
        trajectories=tuple(ScoredTrajectory(trajectory=t, reward=r) for t, r in members),
    )
    algorithm = AlgorithmConfig(advantage="dr_grpo", mask_truncated=True)
    plan = planned(algorithm, group)
    assert plan.advantages.tolist() == pytest.approx([2 / 3, -1 / 3])
    assert plan.left_out() == {
        "left_out_truncated": 2 / 4,
        "left_out_equal_rewards": 0.0,
        "left_out_stale": 0.0,
        "left_out_fraction": 2 / 4,
    }
    shares = planned(algorithm, group, group_of(make_trajectory, [1.0, 1.0])).left_out()
    assert shares["left_out_equal_rewards"] > 0
    assert sum(shares.values()) == pytest.approx(2 * shares["left_out_fraction"])


def test_long_answers_lose_reward_before_advantages_are_taken(make_trajectory) -> None:
    answers = [make_trajectory([1], [2] * length) for length in (4, 8)]
    group = TrainGroup(
        group_id=0,
        trajectories=tuple(ScoredTrajectory(trajectory=one, reward=1.0) for one in answers),
    )
    algorithm = AlgorithmConfig(advantage="dr_grpo", overlong_limit=10, overlong_buffer=4)
    assert advantages(algorithm, group) == pytest.approx([0.25, -0.25])  # 8 is half-way: -0.5


def test_of_an_episode_only_what_the_policy_sampled_is_too_long(make_trajectory) -> None:
    played = make_trajectory([1], [2] * 12, mask=[1, 1] + [0] * 8 + [1, 1])
    stale = make_trajectory([1], [2] * 12, mask=[0] * 8 + [1] * 4)
    members = (
        ScoredTrajectory(trajectory=played, reward=1.0),
        ScoredTrajectory(trajectory=stale, reward=1.0, stale_tokens=8),
    )
    group = TrainGroup(group_id=0, trajectories=members)
    algorithm = AlgorithmConfig(advantage="dr_grpo", overlong_limit=10, overlong_buffer=4)
    assert advantages(algorithm, group) == pytest.approx([0.5, -0.5])


def test_every_rank_gets_its_own_rows_and_nothing_of_the_others(make_batch) -> None:
    batch = make_batch(1)
    plan = planned(AlgorithmConfig(minibatches=2), *batch.groups, vocabulary=320)
    parts = [plan.part(rank) for rank in range(2)]
    places = [place for part in parts for place in part.rows.place.tolist()]
    assert sorted(places) == plan.chosen.tolist()
    every = [one.trajectory for group in batch.groups for one in group.trajectories]
    for part in parts:
        assert sum(map(len, (m.micro_batches for m in part.minibatches))) == len(
            [rows for several in part.micro_batches() for rows in several]
        )
        for rows in (rows for several in part.micro_batches() for rows in several):
            at = 0
            for place, length in zip(
                rows.place.tolist(), rows.tokens.lengths.tolist(), strict=True
            ):
                one = every[place]
                assert rows.tokens.ids[at : at + length].tolist() == [
                    *one.prompt_token_ids,
                    *one.response_token_ids,
                ]
                at += length
    counted = [[(m.tokens, m.sequences) for m in part.minibatches] for part in parts]
    assert counted[0] == counted[1]
    assert sum(tokens for tokens, _ in counted[0]) == sum(sum(one.loss_mask) for one in every)


def test_a_batch_comes_out_of_its_arrays_as_it_went_in(make_trajectory) -> None:
    draw, members = random.Random(0), []
    for length in (0, 1, 7, 8, 9, 64):
        ids, mask = [draw.randrange(300) for _ in range(length)], []
        mask = [draw.randrange(2) for _ in range(length)]
        cut = length // 3
        spans = [(3, 0, cut), (5, cut, length)]
        one = make_trajectory([1, 2, 3], ids, [-0.5] * length, mask=mask, spans=spans)
        members.append(ScoredTrajectory(trajectory=one, reward=draw.random(), stale_tokens=length))
    groups = tuple(
        TrainGroup(group_id=group, trajectories=tuple(members[group : group + 2]))
        for group in range(5)
    )
    batch = GroupBatch(run_id="run", step=4, groups=groups, detailed=(2,))
    assert opened(pickle.loads(pickle.dumps(batch.built))) == batch
    order = np.array([5, 0, 3])
    taken, whole = batch.built.rows.take(order), opened(batch.built)
    every = [one.trajectory for group in whole.groups for one in group.trajectories]
    assert taken.trained().tolist() == [sum(every[i].loss_mask) for i in order]


def test_a_token_takes_less_than_ten_bytes_on_the_wire_and_in_memory(make_trajectory) -> None:
    rows = [make_trajectory([1] * 32, [2] * 400) for _ in range(64)]
    batch = GroupBatch(run_id="run", step=1, groups=(_group(rows),)).built
    tokens = len(batch.rows.ids)
    assert batch.rows.nbytes < 10 * tokens
    buffers: list[Any] = []
    sent = pickle.dumps(batch, protocol=5, buffer_callback=buffers.append)
    assert len(sent) + sum(one.raw().nbytes for one in buffers) < 10 * tokens


def _group(rows: list[Any]) -> TrainGroup:
    members = [ScoredTrajectory(trajectory=one, reward=float(i)) for i, one in enumerate(rows)]
    return TrainGroup(group_id=0, trajectories=tuple(members))


@pytest.mark.parametrize(("place", "token"), [(0, 100), (5, -1)])
def test_a_token_that_the_model_does_not_have_is_refused_with_its_group(
    make_trajectory, place: int, token: int
) -> None:
    ids = [3, 4, 5, 6, 7, 8]
    ids[place] = token
    wrong = _group([make_trajectory([1], [2]), make_trajectory(ids[:3], ids[3:])])
    good = replace(_group([make_trajectory([1], [2])] * 2), group_id=3)
    with pytest.raises(InvalidInput, match=rf"groups\[9\].*{token}.*0 to 99"):
        planned(AlgorithmConfig(), good, replace(wrong, group_id=9))


def test_a_prompt_without_tokens_is_refused_with_its_group(make_trajectory) -> None:
    group = _group([make_trajectory([1], [2]), make_trajectory([], [3])])
    with pytest.raises(InvalidInput, match=r"groups\[0\].*empty prompt"):
        planned(AlgorithmConfig(), group)


def test_a_row_beyond_the_models_longest_is_refused_with_its_group(make_trajectory) -> None:
    batch = GroupBatch(
        run_id="run", step=1, groups=(_group([make_trajectory([1] * n, [2]) for n in (3, 4)]),)
    ).built
    for longest in (4, 5):
        limits = PassLimits(world_size=2, max_tokens=64, longest_row=longest)
        plan = partial(plan_step, batch, AlgorithmConfig(), seed="", limits=limits, vocabulary=9)
        if longest == 5:
            assert len(plan().chosen) == 2
        else:
            with pytest.raises(InvalidInput, match=r"groups\[0\].*5 tokens.*max_model_len"):
                plan()


def test_arrays_that_disagree_are_no_rows() -> None:
    rows = GroupBatch(run_id="run", step=1, groups=()).built.rows
    with pytest.raises(ValueError, match="should hold"):
        TokenRows(**{**vars(rows), "ids": np.zeros(3, dtype=np.int32)})
