"""Muon on real FSDP2 ranks: the update of torch's own on whole matrices."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from transformers import Qwen3Config

from services.protocol.errors import InvalidInput
from services.protocol.run.algorithm import AlgorithmConfig
from services.trainer.config import LoraConfig, TrainerConfig
from services.trainer.sizing.held import shard_of_moments
from services.trainer.sizing.shape import ModelShape
from services.trainer.sizing.training import Training
from services.trainer.step.muon import MuonWithAdamW, refuse_muon
from tests.trainer.test_learner import run_steps

MUON: dict[str, Any] = {"optimizer": "muon", "weight_decay": 0.1}
SIZES = ((6, 5), (3, 8), (7,))
"""Of two matrices, one of which two ranks cannot halve, and of a vector."""


def drawn(seed: int) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(size, generator=draw) for size in SIZES]


def updated(world_size: int) -> list[Any]:
    """Matrices and vector after three updates, on as many ranks; called on each of them."""
    mesh = init_device_mesh("cpu", (world_size,))
    parameters = [nn.Parameter(distribute_tensor(one, mesh, [Shard(0)])) for one in drawn(0)]
    settings: dict[str, Any] = {"lr": 0.01, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
    others = [{"params": parameters[2:]}]
    optimizer = MuonWithAdamW(parameters[:2], others, momentum=0.9, fused=True, **settings)
    for step in (1, 2, 3):
        for parameter, gradient in zip(parameters, drawn(step), strict=True):
            parameter.grad = distribute_tensor(gradient, mesh, [Shard(0)])
        optimizer.step()
    assert all(isinstance(one["momentum_buffer"], DTensor) for one in muons(optimizer))
    return [one.full_tensor().detach().numpy() for one in parameters]


def muons(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    return [optimizer.state[one] for one in optimizer.param_groups[1]["params"]]


@pytest.mark.parametrize("size", [1, 2])
def test_shards_are_updated_as_torch_updates_whole_matrices(rank_groups, size) -> None:
    parameters = [nn.Parameter(one) for one in drawn(0)]
    shared: dict[str, Any] = {"lr": 0.01, "weight_decay": 0.1}
    both = (
        torch.optim.Muon(parameters[:2], momentum=0.9, adjust_lr_fn="match_rms_adamw", **shared),
        torch.optim.AdamW(parameters[2:], betas=(0.9, 0.95), fused=True, **shared),
    )
    for step in (1, 2, 3):
        for parameter, gradient in zip(parameters, drawn(step), strict=True):
            parameter.grad = gradient
        for one in both:
            one.step()
    for found in rank_groups[size].call("do", updated, size):
        for one, expected in zip(found, parameters, strict=True):
            assert one == pytest.approx(expected.detach().numpy(), rel=1e-6, abs=1e-7)


def test_a_run_learns_and_goes_on_from_a_checkpoint_on_one_rank(
    rank_groups, tiny_model, make_batch, make_start
) -> None:
    writer, reader, start = rank_groups[2], rank_groups[1], make_start(**MUON)
    batches = [make_batch() for _ in range(3)]
    reports, _ = run_steps(writer, tiny_model, start, batches)
    losses = [one.metrics["loss"] for one in reports]
    assert losses[0] - losses[-1] > 0.05
    writer.call("save", 1)
    expected = writer.call("train", make_batch(), 0, 1)[0], writer.call("full_tensors")[0]
    for ranks, close in ((writer, 0.0), (reader, 1e-3)):
        ranks.load(tiny_model)
        assert ranks.call("start_run", start, 7)[0].step == 1
        report = ranks.call("train", make_batch(), 0, 1)[0]
        assert report.metrics["loss"] == pytest.approx(expected[0].metrics["loss"], rel=1e-5)
        for name, one in ranks.call("full_tensors")[0].items():
            # bfloat16 turns rounding of a sum over ranks into a part of a step of 1e-3.
            assert np.abs(one - expected[1][name]).max() <= close, name


@pytest.mark.parametrize(
    ("settings", "fix"),
    [
        ({"lora": LoraConfig(rank=2, alpha=2.0)}, "trains factors"),
        ({"moments": "8bit"}, "moments: float32"),
        ({"offload": "optimizer"}, "offload: none"),
    ],
)
def test_what_muon_does_not_go_with_is_refused(settings: dict[str, Any], fix: str) -> None:
    with pytest.raises(InvalidInput, match=fix):
        refuse_muon(TrainerConfig(model="m", **settings))
    with pytest.raises(ValueError, match="optimizer: muon"):
        AlgorithmConfig(momentum=0.8)


def test_the_sizing_has_one_moment_for_each_weight_of_a_matrix() -> None:
    model = Qwen3Config(
        vocab_size=100, hidden_size=8, intermediate_size=16, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, head_dim=4, tie_word_embeddings=True,
    )  # fmt: skip
    trainer = TrainerConfig(model="m", world_size=2)
    training = Training(
        shape=ModelShape.of(model.to_dict()), trainer=trainer, algorithm=AlgorithmConfig(**MUON)
    )
    # A layer: 8 x 8 queries and output, 8 x 4 keys and values, three of 8 x 16.
    matrices = 2 * (2 * 64 + 2 * 32 + 3 * 128)
    assert shard_of_moments(training) == 4 * (matrices + 2 * 800) / 2
