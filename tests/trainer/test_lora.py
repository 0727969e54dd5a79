"""LoRA judged by plain autograd over merged weights in float64."""

import math
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.func import functional_call
from transformers import AutoModelForCausalLM
from vllm.lora.lora_model import LoRAModel
from vllm.lora.peft_helper import PEFTHelper

from services.protocol.errors import InvalidInput
from services.protocol.trainer import RunStart
from services.protocol.trajectory import Trajectory
from services.protocol.weights.weights import Adapter
from services.trainer.algorithms.advantages.advantages import group_advantages
from services.trainer.checkpoints.export import export, main
from services.trainer.checkpoints.parameters import CheckpointParameters
from services.trainer.config import LoraConfig, TrainerConfig
from services.trainer.model.lora import LoraLinear, adapter_off, add_lora, lora_layers
from services.trainer.model.model import decoder_layers
from services.transport.base_digest import base_digest
from tests.batches import GroupBatch
from tests.trainer.sent import sent_tensors

LORA = LoraConfig(rank=3, alpha=12.0, targets=("q_proj", "v_proj", "down_proj"))
ADAPTED = [
    f"model.layers.{index}.{layer}"
    for index in range(2)
    for layer in ("self_attn.q_proj", "self_attn.v_proj", "mlp.down_proj")
]
SEQUENCES = [[5, 6, 7, 8, 9, 10], [11, 12, 13]]


def load(model: Path, dtype: torch.dtype = torch.float64) -> Any:
    return AutoModelForCausalLM.from_pretrained(model, dtype=dtype)


def merged(frozen: dict[str, torch.Tensor], adapter: dict[str, torch.Tensor], config: LoraConfig):
    """The weights of the adapted model, written out."""
    weights = dict(frozen)
    for name in [name for name in adapter if name.endswith("lora_A")]:
        layer = name.removesuffix(".lora_A")
        difference = adapter[f"{layer}.lora_B"] @ adapter[name]
        weights[f"{layer}.weight"] = weights[f"{layer}.weight"] + (
            config.alpha / config.rank * difference
        )
    return weights


def some_loss(logits: torch.Tensor) -> torch.Tensor:
    return (logits.log_softmax(-1) * torch.arange(logits.shape[-1])).square().mean()


@pytest.mark.parametrize("targets", ["all", ("q_proj", "gate_proj")])
def test_gradients_follow_from_those_of_the_merged_weights_by_the_chain_rule(
    tiny_model, targets
) -> None:
    config = LoraConfig(rank=3, alpha=5.0, targets=targets)
    plain, adapted = load(tiny_model), load(tiny_model)
    add_lora(adapted, decoder_layers(adapted), config)
    adapted.double()
    layers = dict(lora_layers(adapted))
    for layer in layers.values():
        torch.nn.init.normal_(layer.lora_B, std=0.1)
    ids = torch.tensor([[5, 6, 7, 8, 9, 10]])
    some_loss(adapted(ids).logits).backward()
    scale = config.alpha / config.rank
    with torch.no_grad():
        for name, layer in layers.items():
            plain.get_submodule(name).weight += scale * layer.lora_B @ layer.lora_A
    some_loss(plain(ids).logits).backward()
    assert len(layers) == 2 * (7 if targets == "all" else 2)
    for name, layer in layers.items():
        whole = plain.get_submodule(name).weight.grad
        for found, expected in (
            (layer.lora_A.grad, scale * layer.lora_B.T @ whole),
            (layer.lora_B.grad, scale * whole @ layer.lora_A.T),
        ):
            assert torch.allclose(found, expected, rtol=1e-9, atol=1e-12 * float(whole.abs().max()))
    trained = {name for name, one in adapted.named_parameters() if one.grad is not None}
    assert trained == {f"{name}.{kind}" for name in layers for kind in ("lora_A", "lora_B")}


def scored(policy: Any, weights: dict[str, torch.Tensor], trajectory: Trajectory) -> torch.Tensor:
    """Logprobs of all response tokens under these weights."""
    ids = torch.tensor([trajectory.prompt_token_ids + trajectory.response_token_ids])
    logs = functional_call(policy, weights, (ids,)).logits[0, :-1].log_softmax(-1)
    return logs.gather(-1, ids[0, 1:, None])[len(trajectory.prompt_token_ids) - 1 :, 0]


def reference_steps(
    model: Path, adapter: dict[str, Any], batches: list[GroupBatch], start: RunStart
) -> tuple[list[float], dict[str, torch.Tensor]]:
    """Gradient norms, and the adapter after the last step, without a LoRA layer in sight.

    What a KL penalty (GRPO's, k3) refers to is the frozen model.
    """
    policy = load(model)
    frozen = {name: one.detach() for name, one in policy.named_parameters()}
    trained = {name: torch.tensor(one).double().requires_grad_() for name, one in adapter.items()}
    algorithm = start.algorithm
    optimizer = torch.optim.AdamW(
        trained.values(),
        lr=algorithm.learning_rate,
        betas=(0.9, 0.95),
        eps=algorithm.epsilon,
        weight_decay=algorithm.weight_decay,
    )
    norms = []
    for batch in batches:
        total, tokens = torch.zeros((), dtype=torch.float64), 0
        for group in batch.groups:
            rewards = [one.reward for one in group.trajectories]
            advantages = group_advantages(rewards, algorithm.advantage)
            for one, advantage in zip(group.trajectories, advantages, strict=True):
                trajectory = one.trajectory
                current = scored(policy, merged(frozen, trained, LORA), trajectory)
                ratio = (current - torch.tensor(trajectory.behaviour_logprobs)).exp()
                low, high = 1 - algorithm.clip_low, 1 + algorithm.clip_high
                loss = -torch.minimum(ratio * advantage, ratio.clamp(low, high) * advantage)
                away = scored(policy, frozen, trajectory).detach() - current
                loss = loss + algorithm.kl.coefficient * (away.exp() - away - 1)
                mask = torch.tensor(trajectory.loss_mask)
                total, tokens = total + (loss * mask).sum(), tokens + int(mask.sum())
        (total / tokens).backward()
        norms.append(torch.nn.utils.clip_grad_norm_(trained.values(), algorithm.grad_clip).item())
        optimizer.step()
        optimizer.zero_grad()
    return norms, {name: one.detach() for name, one in trained.items()}


@pytest.mark.parametrize(("ranks", "coefficient"), [(1, 0.0), (2, 0.0), (2, 20.0)])
def test_only_the_adapter_is_trained_and_as_plain_autograd_would(
    rank_groups, tiny_model, make_batch, make_start, ranks, coefficient
) -> None:
    kl = {"coefficient": coefficient}
    group, start = rank_groups[ranks], make_start(grad_clip=0.3, weight_decay=0.1, kl=kl)
    batches = [make_batch(step, groups=2) for step in (1, 2, 3)]
    group.load(tiny_model, lora=LORA, micro_batch_tokens=60)
    before, frozen = group.call("adapter")[0], group.call("full_tensors")[0]
    group.call("start_run", start, 0)
    norms = [group.call("train", one, 0, one.step)[0].metrics["grad_norm"] for one in batches]
    expected, adapter = reference_steps(tiny_model, before, batches, start)
    assert norms == pytest.approx(expected, rel=1e-4)
    after = group.call("adapter")[0]
    assert after.keys() == adapter.keys()
    for name, found in after.items():
        assert np.abs(found - adapter[name].numpy()).max() < 2e-5, name  # of steps of 1e-3
    for name, found in group.call("full_tensors")[0].items():
        assert np.array_equal(found, frozen[name]), f"{name} was to be left alone"
    held = sum(group.call("optimizer_elements"))
    assert held == 2 * sum(math.prod(one.shape) for one in after.values())


@pytest.mark.parametrize("ranks", [1, 2])
def test_what_travels_merged_is_the_frozen_weight_and_the_scaled_difference(
    rank_groups, tiny_model, make_batch, make_start, ranks
) -> None:
    group = rank_groups[ranks]
    described = group.load(tiny_model, lora=LORA)
    group.call("start_run", make_start(), 0)
    group.call("train", make_batch(1, groups=2), 0, 1)
    adapter = {name: torch.tensor(one) for name, one in group.call("adapter")[0].items()}
    frozen = {
        name: one.detach() for name, one in load(tiny_model, torch.float32).named_parameters()
    }
    expected = merged(frozen, adapter, LORA)
    sent = sent_tensors(described, group.call("snapshot_bytes", 1))
    assert sent.keys() == expected.keys()
    moved = 0
    for name, weight in expected.items():
        assert np.abs(sent[name] - weight.numpy()).max() < 1e-6, name
        moved += not np.array_equal(sent[name], frozen[name].numpy())
    assert moved == 2 * len(LORA.targets)


def test_an_adapter_travels_alone_under_the_names_of_the_peft_format(
    rank_groups, tiny_model, make_batch, make_start
) -> None:
    group = rank_groups[2]
    described = group.load(tiny_model, lora=LORA.model_copy(update={"push": "adapter"}))
    assert described.parameters > 10 * sum(math.prod(one.shape) for one in described.tensors)
    assert described.adapter == Adapter(rank=3, alpha=12.0, base=base_digest(str(tiny_model)))
    group.call("start_run", make_start(), 0)
    group.call("train", make_batch(1, groups=2), 0, 1)
    expected = {
        f"base_model.model.{name}.weight": one for name, one in group.call("adapter")[0].items()
    }
    assert "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight" in expected
    sent = sent_tensors(described, group.call("snapshot_bytes", 1))
    assert sent.keys() == expected.keys()
    assert all(np.array_equal(sent[name], one) for name, one in expected.items())


def test_with_the_adapter_off_the_model_is_the_frozen_one_to_the_bit(
    rank_groups, tiny_model, make_batch, make_start
) -> None:
    group = rank_groups[2]

    def scored(method: str) -> dict[int, list[float]]:
        return {i: one for part in group.call(method, SEQUENCES) for i, one in part.items()}

    group.load(tiny_model)
    frozen = scored("logprobs")
    group.load(tiny_model, lora=LORA)
    assert scored("logprobs") == frozen, "an adapter starts as no difference"
    group.call("start_run", make_start(), 0)
    group.call("train", make_batch(1, groups=2), 0, 1)
    adapted = scored("logprobs")
    assert scored("frozen_logprobs") == frozen
    assert adapted != frozen
    assert scored("logprobs") == adapted, "the adapter was not turned on again"


def test_a_critic_beside_an_adapter_has_one_of_its_own_and_goes_on_from_a_checkpoint(
    rank_groups, tiny_model, make_batch, make_start
) -> None:
    start = make_start(preset="ppo", critic={"learning_rate": 1e-2}, gamma=0.95, gae_lambda=1.0)
    writer, reader = rank_groups[2], rank_groups[1]
    writer.load(tiny_model, lora=LORA)
    frozen = writer.call("full_tensors")[0]
    writer.call("start_run", start, 0)
    first = make_batch(1, groups=2)
    measured = writer.call("train", first, 0, 1)[0].metrics
    # Its head begins with zeros, so its first loss is that of values of 0.
    returns = [
        0.95 ** (sum(one.trajectory.loss_mask) - 1 - place) * one.reward
        for group in first.groups
        for one in group.trajectories
        for place in range(sum(one.trajectory.loss_mask))
    ]
    values = np.array(returns)
    # What bounds a value's step away from 0 cannot act before the first.
    assert measured["value_loss"] == pytest.approx((values**2).mean() / 2, rel=1e-5)
    trained = writer.call("critic_trained")[0]
    adapted = [f"{name}.{kind}" for name in ADAPTED for kind in ("lora_A", "lora_B")]
    assert sorted(trained) == sorted([*adapted, "lm_head.weight", "lm_head.bias"])
    writer.call("save", 1)
    expected = writer.call("train", make_batch(2, groups=2), 1, 2)[0].metrics
    assert abs(expected["value_mean"]) > 1e-4
    for name, found in writer.call("full_tensors")[0].items():
        assert np.array_equal(found, frozen[name]), f"{name} was to be left alone"
    reader.load(tiny_model, lora=LORA)
    assert reader.call("start_run", start, 7)[0].step == 1
    continued = reader.call("train", make_batch(2, groups=2), 1, 2)[0].metrics
    assert continued == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_a_checkpoint_holds_the_adapter_alone_and_goes_on_on_other_ranks(
    rank_groups, tiny_model, make_batch, make_start, tmp_path
) -> None:
    start, writer, reader = make_start(), rank_groups[2], rank_groups[1]
    writer.load(tiny_model, lora=LORA)
    writer.call("start_run", start, 0)
    writer.call("train", make_batch(1, groups=2), 0, 1)
    writer.call("save", 1)
    writer.call("train", make_batch(2, groups=2), 1, 2)
    (checkpoint,) = Path(start.checkpoint_dir).glob("step-*")
    adapter = writer.call("adapter")[0]
    assert CheckpointParameters(checkpoint).shapes == {k: v.shape for k, v in adapter.items()}
    reader.load(tiny_model, lora=LORA)
    assert reader.call("start_run", start, 7)[0].step == 1
    reader.call("train", make_batch(2, groups=2), 1, 2)
    for name, expected in adapter.items():
        assert np.abs(reader.call("adapter")[0][name] - expected).max() < 1e-6, name

    changed = LORA.model_copy(update={"alpha": 1.0})
    reader.load(tiny_model, lora=changed)
    with pytest.raises(InvalidInput, match=r"trainer\.lora"):
        reader.call("start_run", start, 8)
    reader.load(tiny_model)
    with pytest.raises(InvalidInput, match=r"trainer\.lora"):
        reader.call("start_run", start, 8)
    other = shutil.copytree(tiny_model, tmp_path / "other")
    model = load(other, torch.float32)
    with torch.no_grad():
        model.model.norm.weight += 0.1
    model.save_pretrained(other)
    reader.load(other, lora=LORA)
    with pytest.raises(InvalidInput, match=r"trainer.model.*weights with digest"):
        reader.call("start_run", start, 8)


def test_an_exported_adapter_is_what_vllm_and_peft_read(
    rank_groups, tiny_model, make_batch, make_start, tmp_path
) -> None:
    start, group = make_start(), rank_groups[2]
    group.load(tiny_model, lora=LORA)
    group.call("start_run", start, 0)
    group.call("train", make_batch(1, groups=2), 0, 1)
    group.call("save", 1)
    folder = tmp_path / "adapter"
    assert main([str(Path(start.checkpoint_dir)), str(folder), "--adapter"]) == 0
    config = PEFTHelper.from_local_dir(str(folder), 512)
    config.validate_legal(SimpleNamespace(max_lora_rank=8))
    assert config.vllm_lora_scaling_factor == LORA.alpha / LORA.rank
    assert set(config.target_modules) == set(LORA.targets)
    read = LoRAModel.from_local_checkpoint(
        str(folder), set(LORA.targets), config, lora_model_id=1, device="cpu"
    )
    adapter = group.call("adapter")[0]
    assert len(read.loras) == len(adapter) / 2
    for name, layer in read.loras.items():
        assert np.array_equal(layer.lora_a.numpy(), adapter[f"{name}.lora_A"])
        assert np.array_equal(layer.lora_b.numpy(), adapter[f"{name}.lora_B"])
    with pytest.raises(InvalidInput, match="exists already"):
        export(Path(start.checkpoint_dir), folder, adapter=True)


def test_an_adapter_is_turned_on_again_when_what_it_was_off_for_fails(tiny_model) -> None:
    model = load(tiny_model)
    add_lora(model, decoder_layers(model), LORA)

    def fail() -> None:
        with adapter_off(model):
            assert not any(layer.adapted for _, layer in lora_layers(model))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert all(layer.adapted for _, layer in lora_layers(model))


def test_a_layer_without_bias_gets_none_and_one_with_it_keeps_it() -> None:
    for bias in (False, True):
        linear = torch.nn.Linear(4, 6, bias=bias)
        layer = LoraLinear(linear, rank=2, alpha=4.0)
        x = torch.randn(3, 4)
        assert torch.equal(layer(x), linear(x))
        assert (layer.bias is None) == (not bias)


def test_a_target_that_is_no_linear_layer_is_refused_by_name(tiny_model) -> None:
    model = load(tiny_model)
    config = LoraConfig(rank=2, alpha=4.0, targets=("q_proj", "qkv"))
    with pytest.raises(InvalidInput, match=r"trainer.lora.targets: 'qkv'.*down_proj.*v_proj"):
        add_lora(model, decoder_layers(model), config)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"rank": 0, "alpha": 1}, "lora.rank"),
        ({"rank": 4}, "lora.alpha"),
        ({"rank": 4, "alpha": 8, "targets": []}, "lora.targets"),
        ({"rank": 4, "alpha": 8, "push": "both"}, "lora.push"),
        ({"rank": 4, "alpha": 8, "dropout": 0.1}, "lora.dropout"),
    ],
)
def test_a_configuration_that_cannot_be_trained_is_refused_by_field(given, problem) -> None:
    with pytest.raises(InvalidInput, match=problem):
        TrainerConfig.from_data({"model": "m", "lora": given}, source="trainer")


@pytest.mark.parametrize("change", [{"activation_checkpointing": True}, {"dtype": "bfloat16"}])
def test_neither_recomputing_nor_a_frozen_model_in_half_the_bytes_changes_the_update(
    rank_groups, tiny_model, make_batch, make_start, change
) -> None:
    def update(**settings: Any) -> np.ndarray:
        rank_groups[2].load(tiny_model, lora=LORA, **settings)
        rank_groups[2].call("start_run", make_start(), 0)
        rank_groups[2].call("train", make_batch(1, groups=2), 0, 1)
        adapter = rank_groups[2].call("adapter")[0]
        return np.concatenate([adapter[name].reshape(-1) for name in sorted(adapter)])

    plain, changed = update(), update(**change)
    assert changed.dtype == np.float32
    if "dtype" in change:  # the first step of Adam is the sign of the gradient
        assert np.mean(np.abs(plain - changed) < 1e-4) > 0.95
    else:
        assert np.array_equal(plain, changed)
