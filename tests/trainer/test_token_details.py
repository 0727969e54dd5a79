"""What a train step tells of single tokens is what it trained on, whichever rank had them."""

from dataclasses import replace

import pytest

from services.trainer.algorithms.advantages.advantages import group_advantages


def test_details_cover_every_trained_token_of_the_groups_asked_for(
    rank_groups, tiny_model, make_batch, make_start
) -> None:
    batch = make_batch(1)
    wanted = batch.groups[0]
    asked = replace(batch, detailed=(wanted.group_id,))
    ranks = rank_groups[2]
    ranks.load(tiny_model)
    ranks.call("start_run", make_start(ratio_anchor="proximal", minibatches=1), 0)
    sequences = [
        [*one.trajectory.prompt_token_ids, *one.trajectory.response_token_ids]
        for one in wanted.trajectories
    ]
    parts = ranks.call("logprobs", sequences)
    before = {index: values for part in parts for index, values in part.items()}
    steps = ranks.call("train", asked, 0, 1)

    details = {one.index: one for step in steps for one in step.details}
    assert {one.group_id for one in details.values()} == {wanted.group_id}
    assert sorted(details) == list(range(len(wanted.trajectories)))
    told = dict(dict(steps[0].advantages)[wanted.group_id])
    rewards = [one.reward for one in wanted.trajectories]
    assert list(told.values()) == pytest.approx(group_advantages(rewards, "grpo"))
    for index, one in details.items():
        trajectory = wanted.trajectories[index].trajectory
        trained = [i for i, keep in enumerate(trajectory.loss_mask) if keep]
        first = len(trajectory.prompt_token_ids) - 1
        assert list(one.places) == trained
        assert one.advantages == pytest.approx([told[index]] * len(trained))
        expected = [before[index][first + i] for i in trained]
        assert one.logprobs == pytest.approx(expected, abs=1e-4)
