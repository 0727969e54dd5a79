"""AdamW with 8-bit moments of torchao, on real FSDP2 ranks."""

import sys
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import nn
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from transformers import Qwen3Config, Qwen3ForCausalLM

from services.protocol.errors import InvalidInput
from services.trainer.config import LoraConfig, TrainerConfig
from services.trainer.sizing.held import shard_of_moments
from services.trainer.sizing.shape import ModelShape
from services.trainer.sizing.training import Training
from services.trainer.step.update import eight_bit_adamw
from tests.slow import first_of
from tests.trainer.test_algorithms_over_ranks import spoilt
from tests.trainer.test_learner import largest_difference, run_steps
from tests.trainer.test_offload import PPO, done

LORA = LoraConfig(rank=72, alpha=72.0)
"""Large enough that most of its shards on two ranks have 8-bit moments."""


@pytest.fixture
def torchao() -> Any:
    return pytest.importorskip("torchao")


@pytest.mark.parametrize("settings", first_of([{}, {"lora": LORA}, {"model_copies": 2}]))
def test_a_run_learns_nearly_as_with_float32_moments(
    torchao, rank_groups, four_ranks, tiny_model, make_batch, make_start, settings
) -> None:
    ranks = four_ranks if "model_copies" in settings else rank_groups[2]
    batches, start = [make_batch() for _ in range(4)], make_start(weight_decay=0.1)
    expected, _ = run_steps(ranks, tiny_model, start, batches, **settings)
    held = ranks.call("moment_bytes")[0]
    found, _ = run_steps(ranks, tiny_model, start, batches, moments="8bit", **settings)
    losses = [[report.metrics["loss"] for report in one] for one in (found, expected)]
    assert losses[1][0] - losses[1][-1] > 0.1
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)
    assert losses[0] != losses[1]
    assert max(ranks.call("moment_bytes")) < 0.7 * held, "the tiny model's norms stay float32"


@pytest.mark.parametrize(
    ("algorithm", "settings"),
    first_of([(PPO, {"dtype": "bfloat16"}), ({"minibatches": 2}, {"lora": LORA})]),
)
def test_a_resumed_run_goes_on_with_the_same_bits(
    torchao, rank_groups, tiny_model, make_batch, make_start, algorithm, settings
) -> None:
    ranks, start = rank_groups[2], make_start(warmup_steps=3, **algorithm)
    settings = {"moments": "8bit", **settings}
    run_steps(ranks, tiny_model, start, [make_batch(1), make_batch(2)], **settings)
    ranks.call("save", 2)
    expected = [done(ranks.call("train", make_batch(step), 1, step)[0]) for step in (3, 4)]
    ranks.load(tiny_model, **settings)
    assert ranks.call("start_run", start, 7)[0].step == 2
    assert [done(ranks.call("train", make_batch(s), 1, s)[0]) for s in (3, 4)] == expected


@pytest.mark.parametrize(
    ("before", "after"),
    first_of([("float32", "8bit"), ("8bit", "float32"), ("8bit", "8bit")]),
)
def test_a_checkpoint_goes_on_with_other_moments_and_on_one_rank(
    torchao, rank_groups, tiny_model, make_batch, make_start, before, after
) -> None:
    writer, reader, start = rank_groups[2], rank_groups[1], make_start()
    run_steps(writer, tiny_model, start, [make_batch(1), make_batch(2)], moments=before)
    writer.call("save", 2)
    moments = writer.call("moments")[0]
    expected = writer.call("train", make_batch(3), 2, 3)[0]
    for ranks in (writer, reader):
        ranks.load(tiny_model, moments=after)
        assert ranks.call("start_run", start, 7)[0].step == 2
        for name, found in ranks.call("moments")[0].items():
            # Eight bits: within a 28th of a block's largest element, and a block has many rows.
            assert np.abs(found - moments[name]).max() <= np.abs(moments[name]).max() / 28, name
        report = ranks.call("train", make_batch(3), 2, 3)[0]
        assert report.metrics["loss"] == pytest.approx(expected.metrics["loss"], rel=1e-5)
        assert ranks.call("full_tensors")[0].keys() == writer.call("full_tensors")[0].keys()


def test_blocks_that_other_ranks_would_cut_are_refused_with_the_number_of_ranks(
    torchao, rank_groups, four_ranks, tiny_model, make_batch, make_start
) -> None:
    start, settings = make_start(), {"moments": "8bit", "lora": LORA}
    run_steps(rank_groups[2], tiny_model, start, [make_batch(1)], **settings)
    rank_groups[2].call("save", 1)
    four_ranks.load(tiny_model, **settings)
    with pytest.raises(InvalidInput, match=r"lie in blocks: load it with world_size 2\."):
        four_ranks.call("start_run", start, 7)


def test_an_update_that_is_not_finite_leaves_the_moments(
    torchao, rank_groups, tiny_model, make_batch, make_start
) -> None:
    ranks = rank_groups[2]
    run_steps(ranks, tiny_model, make_start(), [make_batch(1)], moments="8bit")
    held = ranks.call("full_tensors")[0], ranks.call("moments")[0]
    report = ranks.call("train", spoilt(make_batch(2), 2), 1, 2)[0]
    assert report.metrics["skipped_updates"] == 1.0
    assert largest_difference(ranks.call("full_tensors")[0], held[0]) == 0.0
    assert largest_difference(ranks.call("moments")[0], held[1]) == 0.0


@pytest.mark.parametrize("lora", [None, LORA, LoraConfig(rank=4, alpha=4.0)])
def test_the_sizing_says_what_the_moments_take(
    torchao, rank_groups, make_batch, make_start, tmp_path, lora
) -> None:
    model = Qwen3Config(
        vocab_size=2048,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        tie_word_embeddings=True,
    )
    Qwen3ForCausalLM(model).save_pretrained(tmp_path / "model")
    ranks, settings = rank_groups[2], {"moments": "8bit", "lora": lora}
    run_steps(ranks, tmp_path / "model", make_start(), [make_batch(groups=2)], **settings)
    trainer = ranks.config(tmp_path / "model", **settings)
    expected = shard_of_moments(Training(shape=ModelShape.of(model.to_dict()), trainer=trainer))
    assert ranks.call("moment_bytes") == pytest.approx([expected] * 2, rel=0.1)


def test_pieces_are_updated_as_torchao_updates_the_whole(torchao, monkeypatch) -> None:
    from torchao.optim import AdamW8bit

    from services.trainer.step import eight_bit_adamw as module

    monkeypatch.setattr(module, "PIECE", 1024)
    torch.manual_seed(0)
    ours, theirs = (nn.Parameter(torch.ones(40, 128)) for _ in range(2))
    # Powers of two, so that it does not matter which of them are multiplied first.
    settings: Any = {"lr": 2**-7, "betas": (0.9, 0.95), "weight_decay": 2**-4}
    optimizers = module.EightBitAdamW([ours], **settings), AdamW8bit([theirs], **settings)
    for _ in range(4):
        ours.grad = torch.randn(40, 128)
        theirs.grad = ours.grad.clone()
        with torch.compiler.set_stance("force_eager"):
            for optimizer in optimizers:
                optimizer.step()
    assert torch.equal(ours, theirs)
    for name in ("exp_avg", "exp_avg_sq"):
        one, other = (
            optimizer.state[parameter][name]
            for optimizer, parameter in zip(optimizers, (ours, theirs), strict=True)
        )
        assert torch.equal(one.codes, other.codes)
        assert torch.equal(one.scale, other.scale)


def test_what_is_copied_for_a_checkpoint_stays_as_it_was(torchao) -> None:
    from services.trainer.step.eight_bit_adamw import EightBitAdamW

    torch.manual_seed(0)
    parameter = nn.Parameter(torch.ones(64, 64))
    optimizer = EightBitAdamW([parameter], lr=1e-3, betas=(0.9, 0.95), weight_decay=0.0)
    copies = []
    for _ in range(2):
        parameter.grad = torch.randn(64, 64)
        optimizer.step()
        moment = optimizer.state[parameter]["exp_avg"]
        kept = DefaultStager(StagingOptions(False, False, False, False)).stage({"moment": moment})
        assert isinstance(kept, dict)
        copies.append((moment.dequantize(), kept["moment"]))
    for expected, copied in copies:
        assert torch.equal(copied.dequantize(), expected)


@pytest.mark.parametrize("offload", ["optimizer", "all"])
def test_offload_with_eight_bit_moments_is_refused(offload: Any) -> None:
    with pytest.raises(ValidationError, match=f"moments: 8bit.*offload is {offload}; set"):
        TrainerConfig(model="model", moments="8bit", offload=offload)


def test_without_torchao_the_error_says_what_to_install(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "torchao.optim", None)
    monkeypatch.delitem(sys.modules, "services.trainer.step.eight_bit_adamw", raising=False)
    with pytest.raises(InvalidInput, match=r"pip install 'millrace\[8bit\]'") as refused:
        eight_bit_adamw("trainer.moments")
    assert (refused.value.field, refused.value.value) == ("trainer.moments", "8bit")
