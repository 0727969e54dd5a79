"""Where parameters, gradients and moments wait changes no bit, on real FSDP2 ranks."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from services.trainer.config import LoraConfig, TrainerConfig
from tests.slow import first_of
from tests.trainer.test_algorithms_over_ranks import spoilt
from tests.trainer.test_learner import largest_difference, run_steps

MODES = ("none", "optimizer", "all")
PPO = {
    "preset": "ppo",
    "kl": {"coefficient": 0.2, "estimator": "k1", "where": "reward"},
    "critic": {"learning_rate": 3e-3},
}
REFRESHED = {"kl": {"coefficient": 0.3, "refresh_steps": 1}, "minibatches": 2, "weight_decay": 0.1}
LORA = LoraConfig(rank=3, alpha=12.0, targets="all")


def done(report: Any) -> Any:
    """What a step did, without how fast it was."""
    own = ("model_tflops", "gradient_noise_scale")  # which depend on time, and on where moments are
    metrics = {key: one for key, one in report.metrics.items() if key not in own}
    return metrics, report.digests, report.tokens


def trained(ranks: Any, model: Path, start: Any, make_batch: Any, **settings: Any) -> Any:
    """What each of two steps reports but its seconds, the canary's scores and the weights."""
    batches = [make_batch(step, groups=3) for step in (1, 2)]
    reports, weights = run_steps(ranks, model, start, batches, **settings)
    scores = ranks.call("logprobs", [[1, 2, 3, 4], [5, 6, 7]])
    return [done(one) for one in reports], scores, weights


def assert_equal_bits(one: Any, other: Any) -> None:
    assert one[:2] == other[:2]
    assert largest_difference(one[2], other[2]) == 0.0


CASES = {
    "one rank": (1, REFRESHED, {}),
    "critic and reference": (2, PPO, {}),
    "bfloat16": (2, REFRESHED, {"dtype": "bfloat16", "micro_batch_tokens": 60}),
    "adapter": (2, {"kl": {"coefficient": 0.3}}, {"lora": LORA}),
    "two copies": (4, REFRESHED, {"model_copies": 2, "micro_batch_tokens": 60}),
    "four ranks": (4, PPO, {"activation_checkpointing": True}),
}


@pytest.mark.parametrize("case", first_of(CASES))
def test_every_mode_trains_the_same_bits(
    rank_groups, four_ranks, tiny_model, make_batch, make_start, case
) -> None:
    size, algorithm, settings = CASES[case]
    ranks, start = (rank_groups | {4: four_ranks})[size], make_start(**algorithm)
    plain = trained(ranks, tiny_model, start, make_batch, **settings)
    for mode in ("optimizer", "all"):
        moved = trained(ranks, tiny_model, start, make_batch, offload=mode, **settings)
        assert_equal_bits(moved, plain)


@pytest.mark.parametrize("before", first_of(MODES))
def test_a_checkpoint_of_any_mode_goes_on_in_every_other(
    rank_groups, tiny_model, make_batch, make_start, before
) -> None:
    ranks, start = rank_groups[2], make_start(**PPO)
    run_steps(ranks, tiny_model, start, [make_batch(1)], offload=before)
    ranks.call("save", 1)
    expected = ranks.call("train", make_batch(2), 1, 2)[0]
    for after in MODES:
        ranks.load(tiny_model, offload=after)
        assert ranks.call("start_run", start, 7)[0].step == 1
        found = ranks.call("train", make_batch(2), 1, 2)[0]
        assert done(found) == done(expected), after


@pytest.mark.parametrize("offload", ["optimizer", "all"])
def test_an_update_that_is_not_finite_leaves_parameters_and_moments(
    rank_groups, tiny_model, make_batch, make_start, offload
) -> None:
    ranks, start = rank_groups[2], make_start()
    run_steps(ranks, tiny_model, start, [make_batch(1)], offload=offload)
    held = ranks.call("full_tensors")[0], ranks.call("moments")[0]
    report = ranks.call("train", spoilt(make_batch(2), 2), 1, 2)[0]
    assert report.metrics["skipped_updates"] == 1.0
    assert largest_difference(ranks.call("full_tensors")[0], held[0]) == 0.0
    assert largest_difference(ranks.call("moments")[0], held[1]) == 0.0


@pytest.mark.parametrize("settings", first_of([{}, {"lora": LORA}, {"offload": "all"}]))
def test_offloaded_activations_change_no_bit(
    rank_groups, tiny_model, make_batch, make_start, settings
) -> None:
    ranks, start = rank_groups[2], make_start(minibatches=2)
    plain = trained(ranks, tiny_model, start, make_batch, **settings)
    settings = {**settings, "activation_checkpointing": True, "activation_offload": True}
    assert_equal_bits(trained(ranks, tiny_model, start, make_batch, **settings), plain)


def test_activations_without_checkpointing_cannot_be_offloaded() -> None:
    with pytest.raises(ValidationError, match="set activation_checkpointing: true, or leave"):
        TrainerConfig(model="model", activation_offload=True)
