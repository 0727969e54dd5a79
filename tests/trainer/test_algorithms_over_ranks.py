"""Every algorithm on real FSDP2 ranks: the layout does not matter, and bad numbers do no harm."""

import dataclasses
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from services.protocol.errors import InvalidInput
from services.protocol.run.algorithm import AlgorithmConfig
from services.protocol.run.algorithm_preset import ALGORITHM_PRESETS
from services.protocol.train_batch import ScoredTrajectory, TrainGroup
from tests.batches import GroupBatch
from tests.slow import first_of
from tests.trainer.test_learner import (
    assert_same_metrics,
    assert_same_weights,
    largest_difference,
)

ROOT = Path(__file__).parents[2]
KL_IN_REWARD = {"coefficient": 0.5, "estimator": "k1", "where": "reward"}
CHOICES: dict[str, dict[str, Any]] = {
    name: {"preset": name} | ({"fixed_length": 24} if name == "dr_grpo" else {})
    for name, preset in ALGORITHM_PRESETS.items()
    if "distillation" not in preset.keys
} | {
    "sequence mask": {
        "preset": "grpo",
        "ratio_anchor": "proximal",
        "mismatch_correction": "mask",
        "mismatch_level": "sequence",
        "mismatch_cap": 1e6,
        "mismatch_floor": 0.1,
    },
    "geometric mask": {
        "preset": "dapo",
        "ratio_anchor": "proximal",
        "mismatch_correction": "mask",
        "mismatch_level": "geometric",
        "mismatch_floor": 0.6,
    },
    "PPO with KL in rewards": {
        "preset": "ppo",
        "kl": KL_IN_REWARD,
        "entropy_bonus": 0.3,
        "ratio_anchor": "proximal",
        "gamma": 0.98,
        "critic": {"learning_rate": 1e-3, "value_clip": 0.001},
    },
    "answers and entropies that mask, in two passes": {
        "preset": "lite_ppo",
        "ratio_anchor": "proximal",
        "sequence_mask": {"geometric_floor": 0.6, "negative_kl": 0.2},
        "top_entropy": 0.5,
        "passes": 2,
    },
    "PPO in two passes": {"preset": "ppo", "passes": 2, "critic": {"learning_rate": 1e-3}},
    "dual clip": {"preset": "grpo", "dual_clip": 1.5},
    "KL in the loss": {"preset": "grpo", "kl": {"coefficient": 0.5}},
    "KL with a mean of its own": {
        "preset": "grpo",
        "kl": {"coefficient": 0.5, "aggregation": "token_mean"},
        "loss_coefficient": 0.5,
    },
    "KL in rewards of answers": {"preset": "rloo", "kl": KL_IN_REWARD},
    "KL in rewards of tokens": {
        "preset": "reinforce_plus_plus_baseline",
        "kl": KL_IN_REWARD,
        "gamma": 0.9,
        "ratio_anchor": "proximal",
    },
}


@pytest.fixture
def run(rank_groups, tiny_model, make_start):
    """A step on so many ranks, with so many tokens in a pass; report and weights."""

    def step(size: int, max_tokens: int, batch: GroupBatch, **algorithm: Any):
        ranks = rank_groups[size]
        ranks.load(tiny_model, micro_batch_tokens=max_tokens, user_losses=True)
        ranks.call("start_run", make_start(**algorithm), 0)
        return ranks.call("train", batch, 0, 1)[0], ranks.call("full_tensors")[0]

    return step


@pytest.mark.parametrize("choice", first_of(CHOICES))
def test_two_ranks_in_small_passes_do_what_one_does_in_one(run, make_batch, choice) -> None:
    batch = make_batch(1, groups=4)
    algorithm = CHOICES[choice]
    # A loss without a ratio has no updates after the first: nothing would correct them.
    if AlgorithmConfig.model_validate(algorithm).loss != "reinforce":
        algorithm = algorithm | {"minibatches": 2}
    whole, expected = run(1, 100_000, batch, **algorithm)
    parts, weights = run(2, 60, batch, **algorithm)
    assert whole.metrics["grad_norm"] > 0
    assert 0 < whole.metrics["masked_fraction"] < 1 or "mask" not in choice
    assert_same_metrics(parts.metrics, whole.metrics)
    assert_same_weights(weights, expected)


def taught(batch: GroupBatch) -> GroupBatch:
    """The batch with a teacher's logprobs, and with one group of given answers."""
    groups = []
    for group in batch.groups:
        members = []
        for one in group.trajectories:
            length = len(one.trajectory.response_token_ids)
            teacher = tuple(-5.0 - 0.1 * (place % 9) for place in range(length))
            members.append(dataclasses.replace(one, teacher=teacher, given=group.group_id == 1))
        groups.append(dataclasses.replace(group, trajectories=tuple(members)))
    return dataclasses.replace(batch, groups=tuple(groups))


def test_a_teacher_and_given_answers_count_the_same_on_any_ranks(run, make_batch) -> None:
    batch = taught(make_batch(1, groups=4))
    algorithm = {
        "preset": "on_policy_distillation",
        "distillation": {"teacher": "large", "rewards": 1.0},
        "minibatches": 2,
    }
    whole, expected = run(1, 100_000, batch, **algorithm)
    parts, weights = run(2, 60, batch, **algorithm)
    assert whole.metrics["cross_entropy"] > 0
    assert whole.metrics["kl_teacher"] > 0
    assert_same_metrics(parts.metrics, whole.metrics)
    assert_same_weights(weights, expected)


def test_a_teachers_advantage_is_that_of_the_proximal_policy_in_every_minibatch(
    run, make_batch
) -> None:
    """Where the loss is, too, nothing is left for the behaviour logprobs to change."""
    batch = make_batch(1, groups=4)
    algorithm = {
        "distillation": {"teacher": "large"},
        "ratio_anchor": "proximal",
        "mismatch_correction": "none",
        "minibatches": 2,
    }
    _, expected = run(1, 100_000, taught(batch), **algorithm)
    groups = []
    for group in batch.groups:
        members = []
        for one in group.trajectories:
            moved = tuple(value - 0.5 for value in one.trajectory.behaviour_logprobs)
            trajectory = dataclasses.replace(one.trajectory, behaviour_logprobs=moved)
            members.append(dataclasses.replace(one, trajectory=trajectory))
        groups.append(dataclasses.replace(group, trajectories=tuple(members)))
    moved_batch = dataclasses.replace(batch, groups=tuple(groups))
    _, weights = run(1, 100_000, taught(moved_batch), **algorithm)
    assert_same_weights(weights, expected)


def given(batch: GroupBatch) -> GroupBatch:
    """The batch with all its answers given."""
    groups = [
        dataclasses.replace(
            group,
            trajectories=tuple(dataclasses.replace(one, given=True) for one in group.trajectories),
        )
        for group in batch.groups
    ]
    return dataclasses.replace(batch, groups=tuple(groups))


def test_a_critic_sits_out_given_answers_and_learns_from_those_that_were_sampled(
    rank_groups, tiny_model, make_batch, make_start
) -> None:
    ranks = rank_groups[2]
    ranks.load(tiny_model, micro_batch_tokens=60)
    ranks.call("start_run", make_start(preset="ppo"), 0)
    warmup = ranks.call("train", given(make_batch(1, groups=2)), 0, 1)[0]
    assert warmup.metrics["cross_entropy"] > 0
    assert warmup.metrics["grad_norm"] > 0
    assert warmup.metrics["critic_grad_norm"] == 0.0
    of_sampled = {"entropy", "effective_sample_size", "clip_fraction_low", "nonfinite_fraction"}
    assert not of_sampled & warmup.metrics.keys(), "not measured is not 0"
    sampled = ranks.call("train", make_batch(2, groups=2), 1, 2)[0]
    assert sampled.metrics["critic_grad_norm"] > 0
    assert of_sampled <= sampled.metrics.keys()


def test_given_answers_alone_have_the_gradient_of_their_mean_cross_entropy(
    run, make_batch, tiny_model
) -> None:
    batch = given(make_batch(1, groups=3))
    report, _ = run(2, 60, batch, grad_clip=1e9, cross_entropy={"coefficient": 0.5})
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    losses = []
    for one in (one.trajectory for group in batch.groups for one in group.trajectories):
        ids = torch.tensor([[*one.prompt_token_ids, *one.response_token_ids]])
        logprobs = model(input_ids=ids).logits[0, :-1].log_softmax(-1)
        of_tokens = logprobs.gather(1, ids[0, 1:, None])[-len(one.response_token_ids) :, 0]
        losses.append(-of_tokens[torch.tensor(one.loss_mask).bool()])
    mean = torch.cat(losses).mean()
    (0.5 * mean).backward()
    gradients = [one.grad for one in model.parameters() if one.grad is not None]
    norm = torch.stack([one.square().sum() for one in gradients]).sum().sqrt()
    assert report.metrics["cross_entropy"] == pytest.approx(mean.item(), rel=1e-5)
    assert report.metrics["grad_norm"] == pytest.approx(norm.item(), rel=1e-4)
    assert report.tokens == sum(map(len, losses))


@pytest.mark.parametrize(
    ("own", "of_loss"), [("token_mean", "sequence_mean"), ("sequence_mean", "token_mean")]
)
def test_where_all_rewards_are_equal_a_kl_penalty_is_averaged_by_its_own_key_alone(
    run, make_batch, own, of_loss
) -> None:
    batch = make_batch(1, groups=3, rewards=lambda draw: 1.0)
    kl = {"coefficient": 0.5, "estimator": "k1", "weighted": True}  # whose slope is never 0
    whole, expected = run(1, 100_000, batch, kl=kl, aggregation=own)
    parts, weights = run(2, 60, batch, kl=kl | {"aggregation": own}, aggregation=of_loss)
    other, different = run(2, 60, batch, kl=kl, aggregation=of_loss)
    assert parts.metrics["grad_norm"] == pytest.approx(whole.metrics["grad_norm"], rel=1e-5)
    assert other.metrics["grad_norm"] != pytest.approx(whole.metrics["grad_norm"], rel=1e-2)
    assert parts.metrics["kl_penalty"] == pytest.approx(whole.metrics["kl_penalty"], abs=1e-6)
    assert_same_weights(weights, expected)
    assert largest_difference(different, expected) > 1e-6


def spoilt(batch: GroupBatch, group: int) -> GroupBatch:
    """The batch with one behaviour logprob of one group that is no number."""
    wrong = batch.groups[group].trajectories[1]
    logprobs = (math.nan, *wrong.trajectory.behaviour_logprobs[1:])
    trajectory = dataclasses.replace(wrong.trajectory, behaviour_logprobs=logprobs)
    members = list(batch.groups[group].trajectories)
    members[1] = dataclasses.replace(wrong, trajectory=trajectory)
    groups = list(batch.groups)
    groups[group] = dataclasses.replace(groups[group], trajectories=tuple(members))
    return dataclasses.replace(batch, groups=tuple(groups))


@pytest.mark.parametrize(("aggregation", "share"), [("token_mean", 0.25), ("sequence_mean", 0.5)])
def test_the_largest_share_of_a_token_by_hand(run, make_trajectory, aggregation, share) -> None:
    """Slopes of REINFORCE are the advantages: 1.5 of one token, and 0.5 each of 2, 3 and 4.

    Summed over tokens they are 1.5 + 9 * 0.5 = 6, of means over answers 1.5 + 3 * 0.5 = 3.
    """
    members = tuple(
        ScoredTrajectory(
            trajectory=make_trajectory([1] * 9, list(range(9, 9 + count))), reward=float(count == 1)
        )
        for count in (1, 2, 3, 4)
    )
    group = TrainGroup(group_id=0, trajectories=members)
    batch = GroupBatch(run_id="run", step=1, groups=(group,))
    algorithm = {"loss": "reinforce", "aggregation": aggregation}
    for size, max_tokens in ((1, 100), (2, 16)):
        report, _ = run(size, max_tokens, batch, **algorithm)
        assert report.metrics["token_share_max"] == pytest.approx(share, rel=1e-6)


@pytest.mark.parametrize("anchor", ["behaviour", "proximal"])
def test_an_update_that_is_not_finite_is_skipped_and_its_group_named(
    run, make_batch, rank_groups, anchor
) -> None:
    report, _ = run(2, 60, spoilt(make_batch(1, groups=4), 2), ratio_anchor=anchor)
    assert report.skipped_groups == (2,)
    assert report.metrics["skipped_updates"] == 1.0
    assert report.metrics["nonfinite_fraction"] == pytest.approx(1 / report.tokens)
    assert all(math.isfinite(value) for value in report.metrics.values())
    after = rank_groups[2].call("train", make_batch(2, groups=4), 1, 2)[0]
    assert after.skipped_groups == ()
    assert after.metrics["grad_norm"] > 0


def test_the_other_minibatches_of_a_spoilt_one_are_trained(run, make_batch) -> None:
    report, _ = run(2, 60, spoilt(make_batch(1, groups=4), 1), minibatches=3)
    assert report.metrics["skipped_updates"] == 1.0
    assert report.metrics["grad_norm"] > 0
    assert report.skipped_groups == (1,)


def test_the_users_loss_is_trained_like_a_built_in_one(run, make_batch, tmp_path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "def mine(tokens, algorithm):\n"
        "    ratio = (tokens.current - tokens.behaviour).exp()\n"
        "    low, high = 1 - algorithm.clip_low, 1 + algorithm.clip_high\n"
        "    bounded = ratio.clamp(low, high) * tokens.advantage\n"
        "    return -(ratio * tokens.advantage).minimum(bounded)\n"
    )
    own, weights = run(2, 60, make_batch(1), loss=f"{file}:mine")
    built_in, expected = run(2, 60, make_batch(1))
    assert own.metrics["loss"] == built_in.metrics["loss"]
    assert all((weights[name] == expected[name]).all() for name in weights)


def test_a_users_loss_that_does_not_load_is_refused_and_the_ranks_live_on(
    run, make_batch, tmp_path
) -> None:
    with pytest.raises(InvalidInput, match=r"algorithm\.loss.*No such file"):
        run(1, 60, make_batch(1), loss=f"{tmp_path}/none.py:mine")
    assert run(1, 60, make_batch(1))[0].tokens > 0


def test_percentiles_of_the_mismatch_are_those_of_the_tokens(run, make_batch) -> None:
    batch = make_batch(1)
    report, _ = run(2, 60, batch, ratio_anchor="proximal")
    stale = dataclasses.replace(batch, groups=tuple(
        dataclasses.replace(g, trajectories=tuple(
            dataclasses.replace(one, trajectory=dataclasses.replace(one.trajectory, spans=tuple(
                dataclasses.replace(span, version=-3) for span in one.trajectory.spans)))
            for one in g.trajectories)) for g in batch.groups))  # fmt: skip
    older, _ = run(1, 60, stale, ratio_anchor="proximal")
    for percent in (50, 90, 99):
        fresh = report.metrics[f"mismatch_p{percent}_lag0"]
        assert older.metrics[f"mismatch_p{percent}_lag3"] == fresh
        assert 0.01 < fresh <= report.metrics["mismatch_max"] * 1.05
    assert older.metrics["mismatch_tokens_lag3"] == older.tokens
    assert older.metrics["mismatch_tokens"] == 0


def test_the_page_says_what_every_metric_is(run, make_batch) -> None:
    page = (ROOT / "docs" / "diagnostics.md").read_text(encoding="utf-8")
    report, _ = run(1, 60, make_batch(1), **CHOICES["PPO with KL in rewards"])
    names = {re.sub(r"lag\d", "lagK", name) for name in report.metrics}
    assert all(f"`{name}`" in page for name in names), names
