"""Mixtures of experts learn what a plain pass of the transformers model would teach them."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from services.protocol.errors import InvalidInput
from services.protocol.train_batch import ScoredTrajectory, TrainGroup
from services.trainer.algorithms.advantages.advantages import group_advantages
from services.trainer.checkpoints.export import export
from services.trainer.experts.routing import Routing, experts_of
from services.trainer.model.twin import layers_of
from tests.batches import GroupBatch
from tests.trainer.sent import sent_tensors
from tests.trainer.test_learner import (
    assert_same_steps,
    assert_same_weights,
    largest_difference,
    run_steps,
)

SIZES: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "moe_intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "num_experts_per_tok": 2,
    "initializer_range": 0.2,  # large enough that what is routed where matters
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": None,
}
FAMILIES: dict[str, dict[str, Any]] = {
    "qwen3_moe": {"num_experts": 6, "norm_topk_prob": True},
    "qwen2_moe": {"num_experts": 6, "shared_expert_intermediate_size": 40},
    "mixtral": {"num_local_experts": 6},
    "olmoe": {"num_experts": 6},
    "deepseek_v3": {
        "n_routed_experts": 8,
        "n_group": 2,
        "topk_group": 1,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 8,
        "v_head_dim": 8,
        "num_key_value_heads": 4,
    },
    "gpt_oss": {"num_local_experts": 6, "hidden_size": 64, "intermediate_size": 64},
}
FILE = "model.safetensors"
COEFFICIENT = 0.7  # large, so that a wrong factor shows
EACH_ROW_ALONE, ALL_ROWS = 16, 100_000  # micro_batch_tokens
LAYOUTS = {
    "one rank, one pass": (1, ALL_ROWS, {}),
    "one rank, a pass a row, recomputed": (1, EACH_ROW_ALONE, {"activation_checkpointing": True}),
    "two ranks, a pass a row": (2, EACH_ROW_ALONE, {}),
    "two ranks, recomputed": (2, EACH_ROW_ALONE, {"activation_checkpointing": True}),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    def make(family: str, **settings: Any) -> Path:
        torch.manual_seed(0)
        folder = tmp_path_factory.mktemp(family)
        config = CONFIG_MAPPING[family](**SIZES | FAMILIES[family] | settings)
        causal = AutoModelForCausalLM.from_config(config)
        with torch.no_grad():  # some start routers at zero
            for name, parameter in causal.named_parameters():
                if "gate.weight" in name or "router" in name:
                    parameter.normal_(std=0.5)
        causal.save_pretrained(folder)
        return folder

    return make


@pytest.fixture
def batch(make_trajectory: Callable[..., Any]) -> GroupBatch:
    """Rows longer than `EACH_ROW_ALONE`, of uneven lengths, some tokens masked."""
    draw = torch.Generator().manual_seed(1)

    def tokens(count: int) -> list[int]:
        return torch.randint(61, (count,), generator=draw).tolist()

    groups = []
    for group_id in range(3):
        rewards = (1.0, 0.0, 0.3)
        rows = [
            make_trajectory(
                tokens(9 + group_id), tokens(12 + 3 * i), mask=[1] * (9 + i) + [0] * (3 + 2 * i)
            )
            for i in range(3)
        ]
        members = tuple(
            ScoredTrajectory(trajectory=row, reward=reward)
            for row, reward in zip(rows, rewards, strict=True)
        )
        groups.append(TrainGroup(group_id=group_id, trajectories=members))
    return GroupBatch(run_id="run", step=1, groups=tuple(groups))


def routed(causal: Any) -> list[tuple[Tensor, Tensor]]:
    """Filled by every forward pass with each router's logits and choices."""
    seen: list[tuple[Tensor, Tensor]] = []
    for module in causal.modules():
        if "Router" in type(module).__name__:
            module.register_forward_hook(lambda _, __, out: seen.append((out[0], out[2])))
    return seen


def balance(rows: list[list[tuple[Tensor, Tensor]]], family: str) -> Tensor:
    """Switch's loss over the tokens of some rows: experts times the sum of f P, by layer."""
    losses = []
    for layer in zip(*rows, strict=True):
        logits, chosen = (torch.cat([one[i] for one in layer]) for i in (0, 1))
        p = logits.softmax(-1)
        if family == "deepseek_v3":
            p = logits.sigmoid() / logits.sigmoid().sum(-1, keepdim=True)
        experts = p.shape[-1]
        f = torch.bincount(chosen.flatten(), minlength=experts) / chosen.numel()
        losses.append(experts * (f * p.mean(0)).sum())
    return sum(losses[1:], losses[0]) / len(losses)


def plain(folder: Path, family: str, batch: GroupBatch, *, alone: bool) -> tuple[Any, float, Any]:
    """Gradients, balancing loss and counts by nothing but the transformers model."""
    causal = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    seen = routed(causal)
    total, rows, shares = torch.zeros(()), [], []
    for group in batch.groups:
        advantages = group_advantages([one.reward for one in group.trajectories], "grpo")
        for one, advantage in zip(group.trajectories, advantages, strict=True):
            row = one.trajectory
            ids = torch.tensor(row.prompt_token_ids + row.response_token_ids)
            seen.clear()
            logs = causal(input_ids=ids[None]).logits[0, :-1].log_softmax(-1)
            own = logs.gather(-1, ids[1:, None])[len(row.prompt_token_ids) - 1 :, 0]
            mask = torch.tensor(row.loss_mask)
            total = total - (own * mask).sum() * advantage
            rows.append(list(seen))
            shares.append(int(mask.sum()))
    tokens = sum(shares)
    if alone:
        even = sum(n / tokens * balance([r], family) for n, r in zip(shares, rows, strict=True))
    else:
        even = balance(rows, family)
    assert isinstance(even, Tensor)
    (total / tokens + COEFFICIENT * even).backward()
    counts = [
        torch.bincount(
            torch.cat([one[1] for one in layer]).flatten(), minlength=layer[0][0].shape[-1]
        )
        for layer in zip(*rows, strict=True)
    ]
    found = {n: p.grad.numpy() for n, p in causal.named_parameters() if p.grad is not None}
    return found, even.item(), torch.stack(counts)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_are_those_of_a_plain_pass(
    rank_groups, model, batch, make_start, family, layout
) -> None:
    size, max_tokens, settings = LAYOUTS[layout]
    folder, ranks = model(family), rank_groups[size]
    alone = max_tokens == EACH_ROW_ALONE
    wanted, even, counts = plain(folder, family, batch, alone=alone)
    ranks.load(folder, micro_batch_tokens=max_tokens, **settings)
    start = make_start(loss="reinforce", router_aux_loss_coef=COEFFICIENT, grad_clip=1e9)
    ranks.call("start_run", start, 0)
    metrics = ranks.call("train", batch, 0, 1)[0].metrics
    found = ranks.call("first_gradient")[0]
    for name, one in found.items():
        expected = wanted.get(name, np.zeros_like(one))
        np.testing.assert_allclose(
            one, expected, rtol=1e-4, atol=1e-5 * max(1, np.abs(expected).max())
        )
    assert found.keys() >= wanted.keys()
    assert metrics["router_aux_loss"] == pytest.approx(even, rel=1e-5)
    load = counts / counts.float().mean(-1, keepdim=True)
    assert metrics["router_max_load"] == pytest.approx(load.max(-1).values.mean().item())
    assert metrics["router_idle_experts"] == pytest.approx((counts == 0).float().mean().item())
    assert 0 < metrics["router_entropy"] < np.log(8)


BY_ROWS = {
    "two ranks": (2, {}),
    "moments on the host": (2, {"offload": "optimizer", "activation_checkpointing": True}),
    "all on the host": (2, {"offload": "all", "gradient_sync": "last_micro_batch"}),
    "two copies": (4, {"model_copies": 2}),
    "four ranks": (4, {"micro_batch_tokens": EACH_ROW_ALONE}),
}


@pytest.mark.parametrize("layout", BY_ROWS)
def test_three_experts_lie_on_an_even_number_of_ranks_by_their_rows(
    rank_groups, four_ranks, model, batch, make_start, layout
) -> None:
    size, settings = BY_ROWS[layout]
    folder, start = model("mixtral", num_local_experts=3), make_start()
    groups = rank_groups | {4: four_ranks}
    sent = {}
    for count, changes in ((1, {}), (size, settings)):
        described = groups[count].load(folder, **changes)
        groups[count].call("snapshot", 9)
        shards = [one for one in groups[count].call("snapshot_bytes", 9) if one]
        sent[count] = sent_tensors(described, shards)
    assert largest_difference(sent[size], sent[1]) == 0.0
    held = groups[size].call("shard_elements")
    whole = groups[1].call("shard_elements")[0]
    ranks_of_a_copy = size // settings.get("model_copies", 1)
    experts = [name for name in whole if ".experts." in name]
    assert len(experts) == 4
    for name in experts:
        assert {one[name] * ranks_of_a_copy for one in held} == {whole[name]}
    expected = run_steps(groups[1], folder, start, [batch])
    found = run_steps(groups[size], folder, start, [batch], **settings)
    assert_same_steps(found[0], expected[0])
    assert_same_weights(found[1], expected[1])


@pytest.mark.slow
def test_a_checkpoint_of_experts_by_rows_goes_on_where_they_lie_whole(
    rank_groups, four_ranks, model, batch, make_start
) -> None:
    folder, start = model("qwen3_moe", num_experts=3), make_start()
    groups, later = rank_groups | {4: four_ranks}, replace(batch, step=2)
    run_steps(groups[2], folder, start, [batch])
    groups[2].call("save", 1)
    expected = groups[2].call("train", later, 1, 2)[0]
    weights = groups[2].call("full_tensors")[0]
    for size in (1, 4):
        groups[size].load(folder)
        assert groups[size].call("start_run", start, 7)[0].step == 1
        assert_same_steps([groups[size].call("train", later, 1, 2)[0]], [expected])
        assert_same_weights(groups[size].call("full_tensors")[0], weights)


def test_padded_tokens_are_not_routed_tokens(rank_groups, model, batch, make_start) -> None:
    folder, found = model("qwen3_moe"), {}
    start = make_start(router_aux_loss_coef=COEFFICIENT)
    for packing in ("on", "off"):
        rank_groups[2].load(folder, packing=packing, micro_batch_tokens=1000)
        rank_groups[2].call("start_run", start, 0)
        found[packing] = rank_groups[2].call("train", batch, 0, 1)[0].metrics
    assert found["on"] == pytest.approx(found["off"], rel=1e-4, abs=1e-6)


def test_tokens_that_are_too_old_leave_the_balancing_loss_as_it_is(
    rank_groups, model, batch, make_start
) -> None:
    def half_too_old(one: ScoredTrajectory) -> ScoredTrajectory:
        mask = one.trajectory.loss_mask
        kept = tuple(bit * (place % 2) for place, bit in enumerate(mask))
        trajectory = replace(one.trajectory, loss_mask=kept)
        return replace(one, trajectory=trajectory, stale_tokens=sum(mask) - sum(kept))

    old = replace(
        batch,
        groups=tuple(
            replace(group, trajectories=tuple(map(half_too_old, group.trajectories)))
            for group in batch.groups
        ),
    )
    ranks, found = rank_groups[1], []
    for one in (batch, old):
        ranks.load(model("qwen3_moe"), micro_batch_tokens=100_000)
        ranks.call("start_run", make_start(router_aux_loss_coef=COEFFICIENT), 0)
        found.append(ranks.call("train", one, 0, 1)[0].metrics["router_aux_loss"])
    assert found[1] == pytest.approx(found[0], rel=1e-5)
    assert found[0] > 0.9


def test_balancing_makes_routing_even(rank_groups, model, batch, make_start) -> None:
    ranks = rank_groups[1]
    ranks.load(model("mixtral"))
    ranks.call("start_run", make_start(router_aux_loss_coef=10.0, learning_rate=0.02), 0)
    losses = []
    for step in range(1, 9):
        one = GroupBatch(run_id="run", step=step, groups=batch.groups)
        losses.append(ranks.call("train", one, step - 1, step)[0].metrics["router_aux_loss"])
    assert losses[0] > losses[-1]
    assert losses[-1] < 1.1


def test_a_dense_model_has_nothing_to_balance(rank_groups, tiny_model, make_start) -> None:
    rank_groups[1].load(tiny_model)
    with pytest.raises(InvalidInput, match=r"router_aux_loss_coef.*qwen3.*no routers"):
        rank_groups[1].call("start_run", make_start(router_aux_loss_coef=0.1), 0)


@pytest.mark.parametrize("family", FAMILIES)
def test_routers_and_experts_are_found(family) -> None:
    causal = AutoModelForCausalLM.from_config(CONFIG_MAPPING[family](**SIZES | FAMILIES[family]))
    mixtures = [list(experts_of(layer)) for layer in layers_of(causal) or ()]
    assert [len(one) for one in mixtures][-1] == 1
    assert Routing(causal).routers == sum(len(one) for one in mixtures)


@pytest.mark.parametrize("family", FAMILIES)
def test_an_export_has_the_tensors_of_the_checkpoint_that_training_began_with(
    rank_groups, model, batch, make_start, tmp_path, family
) -> None:
    ranks, start, folder = rank_groups[1], make_start(), model(family)
    ranks.load(folder)
    ranks.call("start_run", start, 0)
    ranks.call("train", batch, 0, 1)
    ranks.call("save", 1)
    export(Path(start.checkpoint_dir), tmp_path / "exported")
    stored, exported = (load_file(one / FILE) for one in (folder, tmp_path / "exported"))
    assert {name: (one.shape, one.dtype) for name, one in exported.items()} == {
        name: (one.shape, one.dtype) for name, one in stored.items()
    }
