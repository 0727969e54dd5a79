"""Model FLOPs against a count by hand, and MFU of real steps."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from services.protocol.trainer import CheckpointReport, RunStart, TrainBatch
from services.trainer.config import TrainerConfig
from services.trainer.rank.rank_messages import RankStep, speed_of
from services.trainer.step.model_flops import ModelFlops, peak_flops, peak_of


def policy_of(parameters: dict[str, tuple[int, bool]], **text: Any) -> Any:
    shape = {"num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 8} | text
    named = [
        (name, SimpleNamespace(numel=lambda n=n: n, requires_grad=trained))
        for name, (n, trained) in parameters.items()
    ]
    config = SimpleNamespace(get_text_config=lambda: SimpleNamespace(**shape))
    return SimpleNamespace(causal=SimpleNamespace(config=config), named_parameters=lambda: named)


def test_flops_of_rows_are_palms() -> None:
    flops = ModelFlops.of(policy_of({"w": (1000, True)}))
    expected = 10 * (6 * 1000 + 12 * 2 * 4 * 8 * 10) + 3 * (6 * 1000 + 12 * 2 * 4 * 8 * 3)
    assert flops.rows([10, 3]) == expected


def test_frozen_weights_get_no_gradient_and_a_token_meets_few_experts() -> None:
    shape = {"num_experts": 8, "num_experts_per_tok": 2}
    parameters = {"w": (1000, False), "a": (10, True), "mlp.experts.up": (800, True)}
    flops = ModelFlops.of(policy_of(parameters, **shape))
    assert flops.of_token == 4 * 1000 + 6 * 10 + 6 * 800 * 2 / 8


@pytest.mark.parametrize(
    ("name", "tflops"),
    [
        ("NVIDIA H100 80GB HBM3", 989),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA H200", 989),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA L40S", 362),
        ("NVIDIA L4", 121),
        ("Some other GPU", None),
    ],
)
def test_the_peak_is_that_of_the_gpu(name: str, tflops: float | None) -> None:
    assert peak_of(name) == (tflops and tflops * 1e12)


def test_a_configured_peak_counts_and_a_cpu_has_none() -> None:
    assert peak_flops(TrainerConfig(model="m")) is None
    assert peak_flops(TrainerConfig(model="m", peak_tflops=2.0)) == 2e12


def step_of(flops: float, seconds: float) -> RankStep:
    return RankStep(
        step=1,
        policy_version=1,
        tokens=1,
        metrics={"loss": 0.5},
        seconds={"forward_backward": seconds - 1.0, "optimizer": 1.0},
        checkpoint=CheckpointReport(),
        digests=(),
        flops=flops,
    )


def test_mfu_is_over_all_ranks_and_the_time_of_the_slowest() -> None:
    speed = speed_of([step_of(3e12, 4.0), step_of(5e12, 8.0)], peak_flops=2e12)
    assert speed == {"model_tflops": 0.5, "mfu": 0.25}


def test_two_ranks_do_the_flops_of_one(
    rank_groups: Any,
    tiny_model: Path,
    make_start: Callable[..., RunStart],
    make_batch: Callable[..., TrainBatch],
) -> None:
    counted = {}
    for ranks, group in rank_groups.items():
        model = group.load(tiny_model, peak_tflops=0.001)
        assert model.peak_flops == 1e9
        group.call("start_run", make_start(), 0)
        steps = group.call("train", make_batch(1), 0, 1)
        counted[ranks] = sum(step.flops for step in steps)
        metrics = speed_of(steps, model.peak_flops)
        assert metrics["mfu"] == pytest.approx(metrics["model_tflops"] * 1e3)
    assert counted[1] == counted[2] > 0
