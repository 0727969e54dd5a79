"""Which parameters decay, and whose settings a resumed run has, on real FSDP2 ranks."""

from typing import Any

import numpy as np
import pytest
from transformers import AutoModelForCausalLM, GptOssConfig

from services.protocol.run.algorithm import AlgorithmConfig
from services.trainer.config import LoraConfig, TrainerConfig
from services.trainer.model.model import Policy
from services.trainer.model.token_logprobs import Logits
from services.trainer.step.update import make_optimizer
from tests.slow import first_of
from tests.trainer.test_experts import FAMILIES, SIZES
from tests.trainer.test_learner import run_steps

DECAY: dict[str, Any] = {"weight_decay": 0.1, "weight_decay_on": "matrices"}
RATE = 1e-3
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "AdamW": ({}, {}),
    "offloaded moments": ({}, {"offload": "optimizer"}),
    "8-bit moments": ({}, {"moments": "8bit"}),
    "Muon": ({"optimizer": "muon"}, {}),
}
"""Keys of `algorithm` and of `trainer`."""


def spared(name: str) -> bool:
    """Of the tiny model: its embedding and its norms; it has no biases."""
    return "embed_tokens" in name or "norm" in name


@pytest.mark.parametrize("kind", first_of(KINDS))
@pytest.mark.parametrize("size", [1, 2])
def test_decay_shrinks_matrices_by_its_share_and_leaves_the_rest_to_the_bit(
    rank_groups, tiny_model, make_batch, make_start, kind, size
) -> None:
    algorithm, settings = KINDS[kind]
    if "moments" in settings:
        pytest.importorskip("torchao")
    ranks = rank_groups[size]
    ranks.load(tiny_model, **settings)
    initial = ranks.call("full_tensors")[0]
    _, plain = run_steps(ranks, tiny_model, make_start(**algorithm), [make_batch()], **settings)
    start = make_start(**algorithm, **DECAY)
    _, decayed = run_steps(ranks, tiny_model, start, [make_batch()], **settings)
    assert {spared(name) for name in plain} == {True, False}
    for name, one in plain.items():
        if spared(name):
            assert np.array_equal(decayed[name], one), name
        else:
            lost = RATE * 0.1 * initial[name]
            np.testing.assert_allclose(one - decayed[name], lost, atol=2e-7, err_msg=name)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_head_that_is_tied_to_the_embedding_is_spared_with_it(
    rank_groups, tied_model, make_batch, make_start, optimizer
) -> None:
    ranks, start = rank_groups[2], make_start(optimizer=optimizer, **DECAY)
    run_steps(ranks, tied_model, start, [make_batch()])
    groups = ranks.call("optimizer_groups")[0]
    kept = [name for one in groups for name in one["params"] if not one["weight_decay"]]
    assert "model.embed_tokens.weight" in kept
    assert all(map(spared, kept))
    assert not any(spared(name) for one in groups if one["weight_decay"] for name in one["params"])
    ranks.call("save", 1)
    ranks.load(tied_model)
    assert ranks.call("start_run", start, 7)[0].step == 1


def test_all_factors_of_an_adapter_decay(rank_groups, tiny_model, make_batch, make_start) -> None:
    ranks, lora = rank_groups[2], LoraConfig(rank=2, alpha=4.0)
    run_steps(ranks, tiny_model, make_start(**DECAY), [make_batch()], lora=lora)
    (group,) = ranks.call("optimizer_groups")[0]
    assert group["weight_decay"] == 0.1
    assert {name.rpartition(".")[2] for name in group["params"]} == {"lora_A", "lora_B"}


@pytest.mark.parametrize("kind", first_of(KINDS))
def test_a_resumed_run_has_the_settings_of_its_run_file_and_the_same_numbers(
    rank_groups, tiny_model, make_batch, make_start, kind
) -> None:
    algorithm, settings = KINDS[kind]
    if "moments" in settings:
        pytest.importorskip("torchao")
    ranks, start = rank_groups[2], make_start(**algorithm, **DECAY)
    run_steps(ranks, tiny_model, start, [make_batch(1)], **settings)
    ranks.call("save", 1)
    ranks.call("train", make_batch(2), 1, 2)
    expected = ranks.call("full_tensors")[0]
    ranks.load(tiny_model, **settings)
    assert ranks.call("start_run", start, 7)[0].step == 1
    ranks.call("train", make_batch(2), 1, 2)
    found = ranks.call("full_tensors")[0]
    assert all(np.array_equal(one, expected[name]) for name, one in found.items())
    other = DECAY | {"weight_decay": 0.3, "beta1": 0.7, "beta2": 0.8, "epsilon": 1e-5}
    ranks.load(tiny_model, **settings)
    assert ranks.call("start_run", make_start(**algorithm, **other), 7)[0].step == 1
    groups = ranks.call("optimizer_groups")[0]
    for group in groups:
        assert tuple(group["betas"]) == (0.7, 0.8)
        assert group["eps"] == 1e-5
        assert group["weight_decay"] == (0.0 if all(map(spared, group["params"])) else 0.3)
    assert sum(len(one["params"]) for one in groups) == len(expected)


def test_betas_reach_the_update(rank_groups, tiny_model, make_batch, make_start) -> None:
    """After one step the moments are `(1 - beta) g` and `(1 - beta) g^2` of the same gradient."""
    ranks, found = rank_groups[2], []
    for beta1, beta2 in ((0.9, 0.95), (0.5, 0.75)):
        start = make_start(beta1=beta1, beta2=beta2)
        run_steps(ranks, tiny_model, start, [make_batch()])
        moments = ranks.call("moments")[0]
        shares = {"exp_avg": 1 - beta1, "exp_avg_sq": 1 - beta2}
        found.append({n: one / shares[n.rpartition(".")[2]] for n, one in moments.items()})
    first, second = found
    for name, one in first.items():
        np.testing.assert_allclose(one, second[name], rtol=1e-5, atol=1e-12, err_msg=name)


def test_biases_of_stacks_of_experts_are_biases_though_they_have_two_dimensions() -> None:
    config = GptOssConfig(**SIZES | FAMILIES["gpt_oss"])
    policy = Policy(
        AutoModelForCausalLM.from_config(config),
        packs=True,
        logits=Logits(max_bytes=1 << 20),
        gradient_sync="every_micro_batch",
    )
    names = {id(one): name.rpartition("layers.0.")[2] for name, one in policy.named_parameters()}
    shapes = {names[id(one)]: one.ndim for one in policy.parameters()}
    assert shapes["mlp.experts.down_proj_bias"] == 2
    trainer, algorithm = TrainerConfig(model="m"), AlgorithmConfig(optimizer="muon", **DECAY)
    decayed, spared, turned = (
        {names[id(one)] for one in group["params"]}
        for group in make_optimizer(policy, trainer, algorithm).param_groups
    )
    assert {"mlp.experts.down_proj_bias", "mlp.router.bias", "self_attn.sinks"} <= spared
    assert {"mlp.router.weight", "self_attn.q_proj.weight"} <= turned
    assert {"mlp.experts.down_proj", "causal.lm_head.weight"} <= decayed
    assert not any(name.endswith("bias") for name in decayed | turned)


def test_where_nothing_decays_no_parameters_are_spared() -> None:
    with pytest.raises(ValueError, match="weight_decay above 0"):
        AlgorithmConfig(weight_decay_on="matrices")
