"""Real FSDP2 ranks over Gloo: the result is the maths, whatever the layout."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import blake3
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from services.protocol.errors import InvalidInput
from services.protocol.trainer import RunStart
from services.trainer.algorithms.advantages.advantages import group_advantages
from tests.batches import GroupBatch

ONE_PASS = 100_000


def run_steps(ranks: Any, model: Path, start: Any, batches: list[GroupBatch], **settings: Any):
    ranks.load(model, **settings)
    ranks.call("start_run", start, 0)
    reports = [ranks.call("train", batch, 0, batch.step)[0] for batch in batches]
    return reports, ranks.call("full_tensors")[0]


def largest_difference(first: dict[str, Any], second: dict[str, Any]) -> float:
    assert first.keys() == second.keys()
    return max(float(np.abs(first[name] - second[name]).max()) for name in first)


def assert_same_weights(first: dict[str, Any], second: dict[str, Any]) -> None:
    """Up to rounding, after a few steps of 1e-3."""
    assert largest_difference(first, second) < 1e-6


def assert_same_metrics(
    one: dict[str, float], other: dict[str, float], rel: float = 1e-5, near: float = 1e-6
) -> None:
    """Equal up to rounding, which the noise scale, a difference of two close sums, has more of."""
    one, other = dict(one), dict(other)
    scales = [metrics.pop("gradient_noise_scale", None) for metrics in (one, other)]
    assert one == pytest.approx(other, rel=rel, abs=near)
    if None not in scales:
        assert scales[0] == pytest.approx(scales[1], rel=0.02)


def assert_same_steps(first: list[Any], second: list[Any]) -> None:
    for one, other in zip(first, second, strict=True):
        assert one.tokens == other.tokens
        assert_same_metrics(one.metrics, other.metrics)
    assert_same_metrics(first[0].metrics, second[0].metrics, 2e-6, 1e-7)


LAYOUTS = {
    "one rank, small passes": (1, 40),
    "two ranks, one pass": (2, ONE_PASS),
    "two ranks, small passes": (2, 40),
}


@pytest.mark.parametrize("anchor", ["behaviour", "proximal"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_update_depends_neither_on_ranks_nor_on_microbatches(
    rank_groups, tiny_model, make_batch, make_start, layout, anchor
) -> None:
    start = make_start(ratio_anchor=anchor, minibatches=2, temperature=0.8)
    batches = [make_batch(1), make_batch(2)]
    reference, expected = run_steps(
        rank_groups[1], tiny_model, start, batches, micro_batch_tokens=ONE_PASS
    )
    size, max_tokens = LAYOUTS[layout]
    reports, weights = run_steps(
        rank_groups[size], tiny_model, start, batches, micro_batch_tokens=max_tokens
    )
    assert_same_steps(reports, reference)
    assert_same_weights(weights, expected)


def test_recomputing_activations_changes_nothing(
    rank_groups, tiny_model, make_batch, make_start
) -> None:
    batches = [make_batch(1)]
    plain = run_steps(rank_groups[2], tiny_model, make_start(), batches)
    recomputed = run_steps(
        rank_groups[2], tiny_model, make_start(), batches, activation_checkpointing=True
    )
    assert plain[0][0].metrics == recomputed[0][0].metrics
    assert largest_difference(plain[1], recomputed[1]) == 0.0


def reference_loss(policy: Any, batch: GroupBatch, start: RunStart) -> torch.Tensor:
    """Nothing but transformers: one trajectory at a time, logits of the whole sequence."""
    algorithm = start.algorithm
    total, tokens = torch.zeros(()), 0
    low, high = 1 - algorithm.clip_low, 1 + algorithm.clip_high
    for group in batch.groups:
        rewards = [one.reward for one in group.trajectories]
        advantages = group_advantages(rewards, algorithm.advantage)
        for one, advantage in zip(group.trajectories, advantages, strict=True):
            trajectory = one.trajectory
            ids = torch.tensor([trajectory.prompt_token_ids + trajectory.response_token_ids])
            logits = policy(input_ids=ids).logits[0, :-1] / start.temperature
            scored = logits.log_softmax(-1).gather(-1, ids[0, 1:, None])[:, 0]
            current = scored[len(trajectory.prompt_token_ids) - 1 :]
            mask = torch.tensor(trajectory.loss_mask)
            ratio = (current - torch.tensor(trajectory.behaviour_logprobs)).exp()
            loss = -torch.minimum(ratio * advantage, ratio.clamp(low, high) * advantage)
            total = total + (loss * mask).sum()
            tokens += int(mask.sum())
    return total / tokens


def reference_steps(
    model: Path, batches: list[GroupBatch], start: RunStart
) -> tuple[list[tuple[float, float]], dict[str, Any]]:
    """Loss and gradient norm of each step, and the weights after the last."""
    algorithm = start.algorithm
    policy = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    optimizer = torch.optim.AdamW(
        policy.parameters(),
        betas=(0.9, 0.95),
        eps=algorithm.epsilon,
        weight_decay=algorithm.weight_decay,
    )
    done = []
    for index, batch in enumerate(batches):
        loss = reference_loss(policy, batch, start)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(policy.parameters(), algorithm.grad_clip)
        share = min(1.0, (index + 1) / algorithm.warmup_steps)
        optimizer.param_groups[0]["lr"] = algorithm.learning_rate * share
        optimizer.step()
        optimizer.zero_grad()
        done.append((loss.item(), norm.item()))
    return done, {name: tensor.detach().numpy() for name, tensor in policy.named_parameters()}


def test_logits_of_a_few_tokens_at_a_time_change_nothing(
    rank_groups, tied_model, make_batch, make_start
) -> None:
    batches = [make_batch(1), make_batch(2)]
    start = make_start(temperature=0.8, ratio_anchor="proximal", minibatches=2)
    whole = run_steps(rank_groups[2], tied_model, start, batches)
    pieces = run_steps(rank_groups[2], tied_model, start, batches, logits_mb=7 * 320 * 4 / 2**20)
    assert_same_steps(whole[0], pieces[0])
    assert_same_weights(whole[1], pieces[1])


@pytest.mark.parametrize("fixture", ["tiny_model", "tied_model"])
def test_steps_equal_plain_autograd_over_the_hugging_face_model(
    rank_groups, make_batch, make_start, request, fixture
) -> None:
    model = request.getfixturevalue(fixture)
    start = make_start(temperature=0.7, grad_clip=0.3, weight_decay=0.1, warmup_steps=2)
    batches = [make_batch(1), make_batch(2), make_batch(3)]
    reports, weights = run_steps(rank_groups[2], model, start, batches)
    expected, expected_weights = reference_steps(model, batches, start)
    measured = [(one.metrics["loss"], one.metrics["grad_norm"]) for one in reports]
    assert np.array(measured) == pytest.approx(np.array(expected), rel=1e-4)
    assert largest_difference(weights, expected_weights) < 5e-5


def test_groups_without_variance_leave_the_weights_bit_exact(
    rank_groups, tiny_model, make_batch, make_start
) -> None:
    ranks = rank_groups[2]
    ranks.load(tiny_model)
    before = ranks.call("start_run", make_start(weight_decay=0.5), 0)[0].digests
    batch = make_batch(1, rewards=lambda draw: 1.0)
    report = ranks.call("train", batch, 0, 1)[0]
    assert report.digests == before
    assert report.tokens == 0
    assert report.metrics["grad_norm"] == 0.0


def test_logprobs_equal_the_hugging_face_model(rank_groups, tiny_model, make_batch) -> None:
    ranks = rank_groups[2]
    ranks.load(tiny_model, micro_batch_tokens=64)
    sequences = [
        list(one.trajectory.prompt_token_ids + one.trajectory.response_token_ids)
        for group in make_batch(1).groups
        for one in group.trajectories
    ] + [[3]]
    parts = ranks.call("logprobs", sequences)
    scored = {index: values for part in parts for index, values in part.items()}
    policy = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    for index, sequence in enumerate(sequences):
        ids = torch.tensor([sequence])
        with torch.no_grad():
            expected = policy(input_ids=ids).logits[0, :-1].log_softmax(-1)
        wanted = expected.gather(-1, ids[0, 1:, None])[:, 0].tolist()
        assert scored[index] == pytest.approx(wanted, abs=2e-6)


def with_true_logprobs(ranks: Any, batch: GroupBatch, make_trajectory: Any, version: int):
    """The batch as an engine that agrees with the trainer would have recorded it."""
    groups = []
    for group in batch.groups:
        members = []
        for one in group.trajectories:
            prompt = list(one.trajectory.prompt_token_ids)
            response = list(one.trajectory.response_token_ids)
            parts = ranks.call("logprobs", [prompt + response])
            scored = {index: values for part in parts for index, values in part.items()}[0]
            logprobs = scored[len(prompt) - 1 :]
            cut = len(response) // 2  # the first half is stale and recorded as such
            logprobs = [value - 0.4 for value in logprobs[:cut]] + logprobs[cut:]
            spans = [(version - 1, 0, cut), (version, cut, len(response))]
            trajectory = make_trajectory(prompt, response, logprobs, spans=spans)
            members.append(type(one)(trajectory=trajectory, reward=one.reward))
        groups.append(type(group)(group_id=group.group_id, trajectories=tuple(members)))
    return GroupBatch(run_id=batch.run_id, step=batch.step, groups=tuple(groups))


@pytest.mark.parametrize("anchor", ["behaviour", "proximal"])
def test_the_mismatch_is_taken_over_tokens_of_the_held_version_only(
    rank_groups, tiny_model, make_batch, make_start, make_trajectory, anchor
) -> None:
    ranks = rank_groups[2]
    ranks.load(tiny_model)
    ranks.call("start_run", make_start(ratio_anchor=anchor, minibatches=2), 3)
    batch = with_true_logprobs(ranks, make_batch(1, groups=2), make_trajectory, version=3)
    held = ranks.call("train", batch, 3, 4)[0].metrics
    assert held["mismatch_tokens"] > 0
    assert held["mismatch_max"] < 1e-5  # the stale half is 0.4 off
    ranks.call("start_run", make_start(ratio_anchor=anchor), 5)
    stale = ranks.call("train", batch, 2, 6)[0].metrics  # now the stale half is the held one
    assert stale["mismatch_max"] == pytest.approx(0.4, abs=1e-4)


def test_scoring_before_a_run_changes_nothing_in_it(
    rank_groups, tiny_model, make_batch, make_start
) -> None:
    ranks = rank_groups[2]
    (plain,), _ = run_steps(ranks, tiny_model, make_start(), [make_batch(1)])
    ranks.load(tiny_model)
    ranks.call("logprobs", [[3, 4, 5], [6, 7]])
    ranks.call("start_run", make_start(), 0)
    scored = ranks.call("train", make_batch(1), 0, 1)[0]
    assert scored.digests == plain.digests
    ranks.call("logprobs", [[3, 4, 5], [6, 7]])
    assert ranks.call("save", 1)[0].saved_step == 1


def test_starting_again_without_a_checkpoint_goes_back_to_the_initial_weights(
    rank_groups, tiny_model, make_batch, make_start
) -> None:
    ranks = rank_groups[2]
    ranks.load(tiny_model)
    initial = ranks.call("start_run", make_start(), 0)[0].digests
    first = ranks.call("train", make_batch(1), 0, 1)[0]
    assert first.digests != initial
    assert ranks.call("start_run", make_start(), 2)[0].digests == initial
    assert ranks.call("train", make_batch(1), 2, 3)[0].digests == first.digests


def test_the_same_seed_gives_the_same_bytes(
    rank_groups, tiny_model, make_batch, make_start
) -> None:
    start = replace(make_start(minibatches=3), determinism=True)
    batches = [make_batch(1), make_batch(2)]
    first, _ = run_steps(rank_groups[2], tiny_model, start, batches)
    second, _ = run_steps(rank_groups[2], tiny_model, start, batches)
    assert [one.digests for one in first] == [one.digests for one in second]


def test_each_update_waits_until_the_snapshot_has_read_the_weights(
    rank_groups, tiny_model, make_start, make_batch
) -> None:
    ranks = rank_groups[2]
    ranks.load(tiny_model)
    ranks.call("start_run", make_start(), 0)
    before = ranks.call("weights_sum")
    ranks.call("note_waits_for_reads")
    ranks.call("train", make_batch(1), 0, 1)
    assert ranks.call("waits_for_reads") == [[one] for one in before]
    assert ranks.call("weights_sum") != before


def test_shards_of_both_ranks_make_the_full_tensors_and_match_their_digests(
    rank_groups, tied_model
) -> None:
    ranks = rank_groups[2]
    model = ranks.load(tied_model, bucket_mb=0.05)
    assert len(model.buckets) > 2
    assert "lm_head.weight" not in {spec.name for spec in model.tensors}
    digests = ranks.call("snapshot", 11)
    shards = ranks.call("snapshot_bytes", 11)
    for rank in range(2):
        hashed = tuple(blake3.blake3(bucket).hexdigest() for bucket in shards[rank])
        assert digests[rank] == hashed
    saved = AutoModelForCausalLM.from_pretrained(tied_model, dtype=torch.float32).state_dict()
    for bucket, (first, last) in enumerate(model.buckets):
        at = [0, 0]
        for spec in model.tensors[first:last]:
            parts = []
            for rank in range(2):
                size = spec.shard_numels[rank] * spec.dtype.itemsize
                parts.append(shards[rank][bucket][at[rank] : at[rank] + size])
                at[rank] += size
            full = np.frombuffer(b"".join(parts), dtype=np.float32).reshape(spec.shape)
            assert (full == saved[spec.name].numpy()).all(), spec.name
        assert at == [len(shards[rank][bucket]) for rank in range(2)]


def test_bfloat16_travels_at_half_the_size_and_trains_close_to_float32(
    rank_groups, tiny_model, make_batch, make_start
) -> None:
    ranks = rank_groups[2]
    exact, _ = run_steps(ranks, tiny_model, make_start(), [make_batch(1)])
    full = sum(map(len, ranks.call("snapshot_bytes", 1)[0]))
    mixed, _ = run_steps(ranks, tiny_model, make_start(), [make_batch(1)], dtype="bfloat16")
    assert sum(map(len, ranks.call("snapshot_bytes", 1)[0])) * 2 == full
    assert mixed[0].metrics["loss"] == pytest.approx(exact[0].metrics["loss"], abs=0.05)
    assert mixed[0].metrics["grad_norm"] == pytest.approx(exact[0].metrics["grad_norm"], rel=0.1)


def test_a_token_outside_the_vocabulary_is_refused_and_the_ranks_live_on(
    rank_groups, tiny_model, make_batch, make_start
) -> None:
    ranks = rank_groups[1]
    ranks.load(tiny_model)
    ranks.call("start_run", make_start(), 0)
    with pytest.raises(InvalidInput, match="320"):
        ranks.call("logprobs", [[1, 320]])
    assert ranks.call("train", make_batch(1), 0, 1)[0].tokens > 0


def test_a_missing_model_folder_is_refused_with_its_path(rank_groups, tmp_path) -> None:
    with pytest.raises(InvalidInput, match=r"trainer\.model.*nowhere"):
        rank_groups[1].load(tmp_path / "nowhere")


def test_in_the_second_pass_over_a_batch_the_ratio_is_to_the_start_of_the_step(
    rank_groups, tiny_model, make_batch, make_start
) -> None:
    """Two passes of one step are the update of a step, and one of another whose anchor is where
    the first began: logprobs of the start are those of the engine here."""
    settings: dict[str, Any] = {"clip_low": 1.0, "clip_high": 9.0, "advantage": "dr_grpo"}
    ranks, batch = rank_groups[2], make_batch(1)
    on_policy = scored_by(ranks, tiny_model, batch)
    once, _ = run_steps(ranks, tiny_model, make_start(**settings), [on_policy])
    again = ranks.call("train", on_policy, 0, 2)[0]
    expected = ranks.call("full_tensors")[0]
    for anchor in ("behaviour", "proximal"):
        start = make_start(passes=2, ratio_anchor=anchor, **settings)
        (both,), weights = run_steps(ranks, tiny_model, start, [on_policy], micro_batch_tokens=60)
        assert_same_weights(weights, expected)
        assert both.tokens == once[0].tokens
        steps = (once[0].metrics, again.metrics)
        for name in ("loss", "grad_norm", "kl_behaviour", "entropy"):
            mean = sum(one[name] for one in steps) / 2
            assert both.metrics[name] == pytest.approx(mean, rel=1e-4, abs=1e-6), name
    assert both.metrics["kl_proximal"] == pytest.approx(both.metrics["kl_behaviour"], rel=1e-2)
    assert both.metrics["kl_proximal"] > 1e-5


def scored_by(ranks: Any, model: Path, batch: GroupBatch) -> GroupBatch:
    """The batch as the model's own engine would have scored it."""
    ranks.load(model)

    def scored(one: Any) -> Any:
        old, prompt = one.trajectory, len(one.trajectory.prompt_token_ids)
        found = ranks.call("logprobs", [[*old.prompt_token_ids, *old.response_token_ids]])
        own = next(part[0] for part in found if part)[prompt - 1 :]
        return replace(one, trajectory=replace(old, behaviour_logprobs=tuple(own)))

    groups = tuple(
        replace(group, trajectories=tuple(map(scored, group.trajectories)))
        for group in batch.groups
    )
    return replace(batch, groups=groups)


@pytest.mark.parametrize("size", [1, 2])
def test_the_tokens_that_learn_are_those_of_the_highest_entropy_of_all_ranks(
    rank_groups, tiny_model, make_batch, make_start, size
) -> None:
    start = make_start(top_entropy=0.2, minibatches=2)
    batch = replace(make_batch(1), detailed=tuple(range(6)))
    ranks = rank_groups[size]
    ranks.load(tiny_model, micro_batch_tokens=60)
    ranks.call("start_run", start, 0)
    steps = ranks.call("train", batch, 0, 1)
    plain = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float64)
    entropies, learned = [], []
    for detail in (one for step in steps for one in step.details):
        one = batch.groups[detail.group_id].trajectories[detail.index].trajectory
        ids = torch.tensor([one.prompt_token_ids + one.response_token_ids])
        logs = plain(input_ids=ids).logits[0, :-1].log_softmax(-1)[len(one.prompt_token_ids) - 1 :]
        entropies += (-(logs.exp() * logs).sum(-1))[list(detail.places)].tolist()
        learned += [advantage != 0 for advantage in detail.advantages]
    assert len(entropies) == steps[0].tokens
    kept = sorted(entropies, reverse=True)[: math.ceil(0.2 * len(entropies))]
    assert [one >= kept[-1] - 1e-6 for one in entropies] == learned
