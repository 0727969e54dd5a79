"""Rows packed into one sequence score as each does alone, and what cannot be packed says so."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    Phi3Config,
    Qwen3Config,
)

from services.protocol.errors import InvalidInput
from services.trainer.batch.longest_row import longest_row
from services.trainer.batch.packing import PackedRows
from services.trainer.model.model_check import remove_randomness
from services.trainer.model.packed_attention import PACKED, packed_hidden

SIZES: dict[str, Any] = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.2,  # large enough that what is seen matters
}
HEADS = SIZES | {"head_dim": 8}
LONGEST = 70
MOVING: dict[str, Any] = {
    "pad_token_id": 0,
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "factor": 2.0,
        "short_factor": [1.0] * 4,
        "long_factor": [4.0] * 4,
    },
    "original_max_position_embeddings": LONGEST,
}
PACKABLE: dict[str, Any] = {
    "qwen3": Qwen3Config(**HEADS),
    "llama": LlamaConfig(**SIZES),
    "sliding window": MistralConfig(**HEADS, sliding_window=9),
    "some layers sliding": Gemma3TextConfig(
        **HEADS, sliding_window=9, layer_types=["sliding_attention", "full_attention"]
    ),
    "frequencies that change beyond the longest row": Phi3Config(**SIZES | MOVING),
    "absolute positions": GPT2Config(vocab_size=61, n_embd=32, n_layer=2, n_head=4),
}
LENGTHS = (50, 44, 20, 17, 9, 1)  # two groups, uneven within each


def build(config: Any) -> Any:
    torch.manual_seed(0)
    causal = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    remove_randomness(causal)
    return causal


def gradients(causal: Any, hidden: Callable[[], Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
    causal.zero_grad()
    states = hidden()
    weight = torch.linspace(-1, 1, states.numel(), dtype=states.dtype).reshape(states.shape)
    (causal.get_output_embeddings()(states * weight)).sum().backward()
    return states.detach(), {n: p.grad.clone() for n, p in causal.named_parameters()}


@pytest.mark.parametrize("family", PACKABLE)
def test_packed_rows_score_and_learn_as_each_alone(family: str) -> None:
    causal = build(PACKABLE[family]).double()
    ids = torch.randint(61, (sum(LENGTHS),), generator=torch.Generator().manual_seed(1))
    rows = PackedRows.of(LENGTHS)
    alone = [one[None] for one in ids.split(list(LENGTHS))]
    expected, wanted = gradients(
        causal, lambda: torch.cat([causal.base_model(one).last_hidden_state[0] for one in alone])
    )
    causal.set_attn_implementation(PACKED)
    states, found = gradients(causal, lambda: packed_hidden(causal, ids, rows))
    torch.testing.assert_close(states, expected, rtol=1e-9, atol=1e-9)
    for name, gradient in wanted.items():
        # Norms compute in float32 even in a float64 model, so not to the last digit.
        torch.testing.assert_close(found[name], gradient, rtol=1e-5, atol=1e-5)


def test_a_token_of_one_row_changes_no_other_row() -> None:
    causal = build(PACKABLE["qwen3"])
    causal.set_attn_implementation(PACKED)
    ids = torch.arange(sum(LENGTHS)) % 61
    rows = PackedRows.of(LENGTHS)
    other = ids.clone()
    other[60] = 3  # in the second row
    with torch.no_grad():
        before, after = (packed_hidden(causal, one, rows) for one in (ids, other))
    changed = (before != after).any(-1)
    assert changed[60:94].all()
    assert not changed[:60].any()
    assert not changed[94:].any()


def test_even_rows_of_any_number_make_one_group() -> None:
    assert len(PackedRows.of([24] * 50).groups) == 1
    assert len(PackedRows.of([400, 390, 380, 20, 19, 5]).groups) == 2
    assert len(PackedRows.of([5, 400, 5, 400]).groups) == 4


def test_a_padded_model_trains_the_same_steps(rank_groups, tiny_model, make_batch, make_start):
    def step(packing: str) -> Any:
        ranks = rank_groups[2]
        ranks.load(tiny_model, packing=packing, micro_batch_tokens=80)
        ranks.call("start_run", make_start(), 0)
        return ranks.call("train", make_batch(1), 0, 1)[0].metrics

    assert step("off") == pytest.approx(step("on"), rel=1e-5, abs=1e-6)


def test_asking_for_packing_where_it_cannot_be_is_refused(rank_groups, tmp_path) -> None:
    build(Gemma2Config(**HEADS)).save_pretrained(tmp_path)
    with pytest.raises(InvalidInput, match=r"trainer\.packing.*softcap.*off"):
        rank_groups[1].load(tmp_path, packing="on")


def test_the_longest_row_is_the_last_that_leaves_other_rows_alone() -> None:
    causal = build(Phi3Config(**SIZES | MOVING))
    longest = longest_row(causal.config)
    assert longest == LONGEST
    short, causal.config._attn_implementation = torch.arange(9), PACKED

    def beside(length: int) -> Tensor:
        rows = [torch.arange(length) % 61, short]
        with torch.no_grad():
            states = packed_hidden(causal, torch.cat(rows), PackedRows.of([length, 9]))
        return states[length:]

    torch.testing.assert_close(beside(longest), beside(1))
    assert (beside(longest + 1) - beside(1)).abs().max() > 0.01


@pytest.mark.parametrize(
    ("rope", "longest"),
    [
        (None, None),
        ({"rope_type": "yarn", "factor": 4.0}, None),
        ({"rope_type": "dynamic", "factor": 2.0}, 2048),
        ({"full_attention": {"rope_type": "default"}}, None),
        (
            {
                "full_attention": {"rope_type": "dynamic", "factor": 2.0},
                "sliding_attention": {
                    "rope_type": "longrope",
                    "original_max_position_embeddings": 512,
                },
            },
            512,
        ),
    ],
)
def test_frequencies_that_follow_the_largest_position_bound_the_rows(
    rope: dict[str, Any] | None, longest: int | None
) -> None:
    config = SimpleNamespace(rope_parameters=rope, max_position_embeddings=2048)
    assert longest_row(config) == longest
