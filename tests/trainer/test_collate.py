"""Layout of micro-batches."""

import numpy as np
import torch

from services.protocol.train_batch import ScoredTrajectory, TrainGroup
from services.protocol.trajectory import Trajectory
from services.trainer.batch.collate import collate, collate_sequences
from services.trainer.batch.rank_batch import Rows
from tests.batches import GroupBatch


def rows_of(*trajectories: Trajectory, advantages: tuple[float, ...] = (1.0,)) -> Rows:
    members = tuple(ScoredTrajectory(trajectory=one, reward=0.0) for one in trajectories)
    group = TrainGroup(group_id=0, trajectories=members)
    count = np.arange(len(members))
    tokens = GroupBatch(run_id="run", step=1, groups=(group,)).built.rows
    return Rows(
        tokens=tokens,
        place=count,
        group_ids=0 * count,
        indexes=count,
        advantages=np.array(advantages[: len(members)]),
        sampled=tokens.trained(),
        given=np.zeros(len(members), dtype=np.bool_),
        shared=0 * count,
    )


def test_trained_tokens_are_predicted_by_the_position_before_them(make_trajectory) -> None:
    rows = rows_of(
        make_trajectory([10, 11, 12], [20, 21], [-0.5, -0.6]),
        make_trajectory([13], [22, 23, 24], mask=[1, 0, 1]),
        advantages=(2.0, -1.0),
    )
    micro = collate(rows, held_version=0)
    assert micro.input_ids.tolist() == [10, 11, 12, 20, 21, 13, 22, 23, 24]
    assert micro.rows.lengths == (5, 4)
    assert micro.row.tolist() == [0, 0, 1, 1]
    assert micro.target.tolist() == [20, 21, 22, 24]
    assert micro.input_ids[micro.position + 1].tolist() == micro.target.tolist()
    assert micro.behaviour.tolist() == torch.tensor([-0.5, -0.6, -1.0, -1.0]).tolist()
    assert micro.advantage.tolist() == [2.0, 2.0, -1.0, -1.0]


def test_every_token_knows_how_many_versions_it_is_behind(make_trajectory) -> None:
    trajectory = make_trajectory([1], [2, 3, 4], spans=[(3, 0, 1), (5, 1, 3)])
    micro = collate(rows_of(trajectory), held_version=5)
    assert micro.lag.tolist() == [2, 0, 0]


def test_an_empty_microbatch_has_one_token_of_no_weight() -> None:
    micro = collate(rows_of(), held_version=0)
    assert micro.weight.tolist() == [0.0]
    assert micro.lag.tolist() == [-1]  # nothing to compare with an engine


def test_sequences_are_scored_from_their_second_token_on() -> None:
    micro = collate_sequences([[5, 6, 7], [8], [9, 10]])
    assert micro.target.tolist() == [6, 7, 10]
    assert micro.row.tolist() == [0, 0, 2]
    assert micro.position.tolist() == [0, 1, 4]
