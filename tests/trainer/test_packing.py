"""Rows packed into one sequence score as each does alone, and what cannot be packed says so."""

from collections.abc import Callable
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
    Qwen3Config,
)

from services.protocol.errors import InvalidInput
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
PACKABLE: dict[str, Any] = {
    "qwen3": Qwen3Config(**HEADS),
    "llama": LlamaConfig(**SIZES),
    "sliding window": MistralConfig(**HEADS, sliding_window=9),
    "some layers sliding": Gemma3TextConfig(
        **HEADS, sliding_window=9, layer_types=["sliding_attention", "full_attention"]
    ),
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
