"""Models are scored as their own code scores them, or refused; found out on a small twin."""

import copy
from typing import Any

import pytest
import torch
from torch import nn
from transformers import AutoModelForCausalLM, PretrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.granite import modeling_granite

from services.protocol.errors import InvalidInput
from services.trainer.config import TrainerConfig
from services.trainer.model import model_check
from services.trainer.model.model_check import check_model
from services.trainer.model.token_logprobs import LogitForm
from services.trainer.model.twin import WINDOW, layers_of, make_twin

PACKED = [
    "qwen2",
    "qwen3",
    "llama",
    "gemma",
    "gemma3_text",
    "gpt2",
    "gpt_neox",
    "phi",
    "phi3",
    "opt",
    "olmo2",
    "olmo3",
    "cohere",
    "cohere2",
    "granite",
    "granitemoe",
    "glm4",
    "starcoder2",
    "smollm3",
    "mixtral",
    "qwen2_moe",
    "qwen3_moe",
    "olmoe",
    "deepseek_v3",
    "glm4_moe",
    "ernie4_5_moe",
]
PADDED = {
    "gemma2": ("eager", "softcap"),
    "gpt_oss": ("eager", "s_aux"),
    "phimoe": ("sdpa", "sliding_window"),
    "mamba": ("eager", "change each other"),
    "jamba": ("sdpa", "change each other"),
    "bloom": ("eager", "attention"),
    "stablelm": ("sdpa", "hand packed rows on"),
    "lfm2": ("sdpa", "change each other"),
    "qwen3_next": ("sdpa", "change each other"),
}
CHANGED: dict[str, dict[str, Any]] = {
    "phimoe": {"sliding_window": 2047},  # as in Phi-3.5-MoE's checkpoint; None in the class
    "cohere2": {"sliding_window": 4096},
    "lfm2": {"num_hidden_layers": 2, "layer_types": ["conv", "full_attention"]},
    "granite": {"logits_scaling": 8.0, "attention_multiplier": 0.0078125},
}
FORMS = {
    "cohere": LogitForm(scale=0.0625),
    "cohere2": LogitForm(scale=0.0625),
    "granite": LogitForm(scale=0.125),
    "gemma2": LogitForm(cap=30.0),
}
CONFIG = TrainerConfig(model="some/model")


def configuration(model_type: str) -> PretrainedConfig:
    return CONFIG_MAPPING[model_type](**CHANGED.get(model_type, {}))


@pytest.fixture
def warnings(monkeypatch) -> dict[str, str]:
    """Reasons that were logged, by event."""
    logged: dict[str, str] = {}
    monkeypatch.setattr(
        model_check._log, "warning", lambda event, **facts: logged.update({event: facts["why"]})
    )
    return logged


@pytest.mark.parametrize("model_type", PACKED)
def test_rows_of_many_architectures_are_packed(model_type, warnings) -> None:
    found = check_model(CONFIG, configuration(model_type))
    assert not warnings
    assert found.packs
    assert found.form == FORMS.get(model_type, LogitForm())


@pytest.mark.parametrize("model_type", PADDED)
def test_rows_of_others_are_padded_with_the_reason(model_type, warnings) -> None:
    attention, why = PADDED[model_type]
    config = configuration(model_type)
    found = check_model(CONFIG, config)
    assert (found.packs, found.attention) == (False, attention)
    assert found.form == FORMS.get(model_type, LogitForm())
    assert why in warnings["rows_are_padded"]
    with pytest.raises(InvalidInput, match=rf"trainer\.packing.*{why}.*off"):
        check_model(CONFIG.model_copy(update={"packing": "on"}), config)


def test_a_multiplier_of_the_output_layer_is_taken_from_the_model(warnings) -> None:
    config = CONFIG_MAPPING["falcon_h1"](
        hidden_size=64,
        num_attention_heads=4,
        num_key_value_heads=2,
        mamba_d_ssm=64,
        mamba_n_heads=4,
        mamba_d_head=16,
        mamba_d_state=16,
        lm_head_multiplier=0.0375,
    )
    found = check_model(CONFIG, config)
    assert found.form == LogitForm(scale=0.0375)
    assert not found.packs


def test_logits_that_are_made_in_an_unknown_way_are_refused(monkeypatch) -> None:
    own = modeling_granite.GraniteForCausalLM.forward

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        output = own(self, *args, **kwargs)
        output.logits = output.logits + output.logits.sin()
        return output

    monkeypatch.setattr(modeling_granite.GraniteForCausalLM, "forward", forward)
    monkeypatch.setattr(model_check, "_known", {})
    with pytest.raises(InvalidInput, match=r"some/model.*granite.*wrongly.*logits_scaling"):
        check_model(CONFIG, configuration("granite"))


def test_a_model_of_which_no_way_is_right_is_refused(monkeypatch) -> None:
    monkeypatch.setattr(model_check, "_known", {})
    monkeypatch.setattr(model_check, "padded_hidden", lambda causal, ids, rows: torch.zeros(46, 64))
    config = CONFIG.model_copy(update={"packing": "off"})
    with pytest.raises(InvalidInput, match=r"trainer\.model.*llama.*wrongly.*nats"):
        check_model(config, configuration("llama"))


def test_a_twin_has_every_kind_of_layer_and_small_windows() -> None:
    twin = make_twin(configuration("gemma3_text"))
    kinds = {layer.self_attn.is_sliding for layer in layers_of(twin) or ()}
    assert kinds == {True, False}
    assert twin.config.sliding_window == WINDOW
    dense_and_sparse = make_twin(configuration("deepseek_v3"))
    assert len({type(layer.mlp) for layer in layers_of(dense_and_sparse) or ()}) == 2


def test_the_random_state_and_the_configuration_are_left_alone() -> None:
    config = configuration("qwen3_moe")
    before, state = copy.deepcopy(config), torch.random.get_rng_state()
    first, second = make_twin(config), make_twin(config)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert repr(config) == repr(before)
    for one, other in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_capped_model_is_scored_by_ranks_as_by_its_own_code(rank_groups, tmp_path) -> None:
    torch.manual_seed(0)
    config = CONFIG_MAPPING["gemma2"](
        vocab_size=61,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        sliding_window=5,
        initializer_range=0.5,
        final_logit_softcapping=2.0,
        attn_logit_softcapping=1.5,
    )
    causal = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    causal.save_pretrained(tmp_path)
    rows = [list(range(3, 20)), [5, 9, 2], [7, 7, 30, 1, 12, 60]]
    rank_groups[2].load(tmp_path)
    found = rank_groups[2].call("logprobs", rows)
    scored = {index: values for answer in found for index, values in answer.items()}
    for index, row in enumerate(rows):
        logs = causal(torch.tensor([row])).logits[0].log_softmax(-1)
        own = logs[:-1].gather(-1, torch.tensor(row)[1:, None])[:, 0]
        assert scored[index] == pytest.approx(own.tolist(), abs=1e-5)


def test_jitter_and_dropout_are_off_where_activations_are_recomputed() -> None:
    causal = make_twin(configuration("mixtral"))
    causal.gradient_checkpointing_enable()
    model_check.remove_randomness(causal)
    layers = layers_of(causal)
    assert isinstance(layers, nn.ModuleList)
    assert all(layer.training for layer in layers)
    assert not any(layer.mlp.training for layer in layers)
