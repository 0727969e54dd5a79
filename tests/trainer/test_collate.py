"""Layout of micro-batches."""

import torch

from services.protocol.trajectory import Trajectory
from services.trainer.batch.batching import Row
from services.trainer.batch.collate import collate, collate_sequences


def row(trajectory: Trajectory, advantage: float = 1.0) -> Row:
    return Row(group_id=0, index=0, trajectory=trajectory, advantage=advantage)


def test_trained_tokens_are_predicted_by_the_position_before_them(make_trajectory) -> None:
    rows = [
        row(make_trajectory([10, 11, 12], [20, 21], [-0.5, -0.6]), advantage=2.0),
        row(make_trajectory([13], [22, 23, 24], mask=[1, 0, 1]), advantage=-1.0),
    ]
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
    micro = collate([row(trajectory)], held_version=5)
    assert micro.lag.tolist() == [2, 0, 0]


def test_an_empty_microbatch_has_one_token_of_no_weight() -> None:
    micro = collate([], held_version=0)
    assert micro.weight.tolist() == [0.0]
    assert micro.lag.tolist() == [-1]  # nothing to compare with an engine


def test_sequences_are_scored_from_their_second_token_on() -> None:
    micro = collate_sequences([[5, 6, 7], [8], [9, 10]])
    assert micro.target.tolist() == [6, 7, 10]
    assert micro.row.tolist() == [0, 0, 2]
    assert micro.position.tolist() == [0, 1, 4]
