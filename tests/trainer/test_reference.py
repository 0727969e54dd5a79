"""What a KL penalty holds the policy to: the first model, a later policy, or an adapter's base."""

from typing import Any

import pytest

from services.protocol.errors import InvalidInput
from services.protocol.run.algorithm import AlgorithmConfig
from services.trainer.config import LoraConfig

LORA = LoraConfig(rank=3, alpha=12.0, targets=("q_proj", "down_proj"))
KL = {"coefficient": 0.3, "refresh_steps": 2}


def steps(ranks: Any, make_batch: Any, numbers: tuple[int, ...]) -> list[dict[str, float]]:
    """Metrics of these train steps."""
    return [
        ranks.call("train", make_batch(step, groups=2), step - 1, step)[0].metrics
        for step in numbers
    ]


def test_every_so_many_steps_the_reference_is_the_policy_as_it_was_then(
    rank_groups, tiny_model, make_batch, make_start
) -> None:
    ranks = rank_groups[2]
    ranks.load(tiny_model)
    ranks.call("start_run", make_start(preset="grpo", kl=KL), 0)
    gaps = [one["kl_reference"] for one in steps(ranks, make_batch, (1, 2, 3, 4))]
    assert gaps[0::2] == pytest.approx([0.0, 0.0], abs=1e-9)
    assert min(gaps[1::2]) > 1e-5
    ranks.call("start_run", make_start(preset="grpo", kl={"coefficient": 0.3}), 0)
    stays = [one["kl_reference"] for one in steps(ranks, make_batch, (1, 2, 3, 4))]
    assert stays[:2] == pytest.approx(gaps[:2], rel=1e-6)
    assert stays[3] > stays[2] > 1e-5


def test_a_reference_that_is_mixed_is_a_moving_average_of_the_policy(
    rank_groups, tiny_model, make_batch, make_start
) -> None:
    ranks, kl = rank_groups[2], {"coefficient": 0.3, "refresh_steps": 1, "refresh_mix": 0.25}
    ranks.load(tiny_model)
    ranks.call("start_run", make_start(preset="grpo", kl=kl), 0)
    average = ranks.call("full_tensors")[0]
    for step in (1, 2):
        steps(ranks, make_batch, (step,))
        policy = ranks.call("full_tensors")[0]
        average = {name: 0.75 * one + 0.25 * policy[name] for name, one in average.items()}
    reference = ranks.call("reference_tensors")[0]
    assert reference.keys() == average.keys()
    for name, one in average.items():
        assert reference[name] == pytest.approx(one, abs=1e-6), name


@pytest.mark.parametrize("size", [1, 2])
def test_a_refreshed_reference_goes_on_from_a_checkpoint(
    rank_groups, tiny_model, make_batch, make_start, size
) -> None:
    start, writer, reader = make_start(preset="grpo", kl=KL), rank_groups[2], rank_groups[size]
    writer.load(tiny_model)
    writer.call("start_run", start, 0)
    steps(writer, make_batch, (1, 2, 3))
    writer.call("save", 3)
    expected = steps(writer, make_batch, (4, 5))
    reader.load(tiny_model)
    assert reader.call("start_run", start, 7)[0].step == 3
    for found, one in zip(steps(reader, make_batch, (4, 5)), expected, strict=True):
        assert found == pytest.approx(one, rel=1e-5, abs=1e-6)
    assert expected[0]["kl_reference"] > 1e-5


def test_the_model_under_an_adapter_cannot_be_refreshed(
    rank_groups, tiny_model, make_start
) -> None:
    ranks = rank_groups[1]
    ranks.load(tiny_model, lora=LORA)
    with pytest.raises(InvalidInput, match=r"kl\.refresh_steps.*adapter turned off"):
        ranks.call("start_run", make_start(kl=KL), 0)


def test_refreshing_what_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match="coefficient above 0"):
        AlgorithmConfig(kl={"refresh_steps": 2})
