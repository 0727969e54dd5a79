"""Compiled layers compute what plain ones do, whatever the lengths of the rows."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
from transformers import AutoModelForCausalLM

from services.protocol.errors import InvalidInput
from services.trainer.batch.packing import PackedRows
from services.trainer.heartbeat import HEARTBEAT
from services.trainer.model.compiled import compile_layers
from services.trainer.model.model import decoder_layers
from services.trainer.model.packed_attention import PACKED, packed_hidden, padded_hidden


@pytest.fixture(scope="module", autouse=True)
def _compiling() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as set_, torch._dynamo.config.patch(disable=False):
        set_.delenv("TORCHDYNAMO_DISABLE", raising=False)  # an engine's, in the same process
        yield


def load(model: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(
        model, dtype=torch.float64, attn_implementation="sdpa"
    )


def gradients(causal: Any, hidden: Any, lengths: list[int]) -> dict[str, torch.Tensor]:
    causal.zero_grad()
    ids = (torch.arange(sum(lengths)) * 7) % 320
    states = hidden(causal, ids, PackedRows.of(lengths))
    (states.sin() * torch.arange(states.shape[-1])).mean().backward()
    found = {
        name: one.grad.clone() for name, one in causal.named_parameters() if one.grad is not None
    }
    return found | {"states": states.detach()}


@pytest.mark.parametrize("hidden", [packed_hidden, padded_hidden])
def test_states_and_gradients_are_those_of_plain_layers(
    tiny_model, hidden, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = load(tiny_model)
    if hidden is packed_hidden:
        plain.set_attn_implementation(PACKED)
    compiled = copy.deepcopy(plain)
    compile_layers(decoder_layers(compiled), backend="aot_eager")
    torch._dynamo.utils.counters.clear()
    told: list[bool] = []
    monkeypatch.setattr(HEARTBEAT, "compiling", told.append)
    for lengths in ([9, 4], [12, 3, 30]):
        expected = gradients(plain, hidden, lengths)
        found = gradients(compiled, hidden, lengths)
        assert found.keys() == expected.keys()
        for name, one in expected.items():
            assert torch.allclose(found[name], one, rtol=1e-10, atol=1e-13), name
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0, "nothing was compiled"
    assert told == [True, False] * (len(told) // 2), "the heartbeat knows when torch compiles"
    assert told


def test_without_a_compiler_it_is_refused_with_the_fix(tiny_model, monkeypatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(InvalidInput, match=r"trainer\.compile.*no-such-compiler.*CXX"):
        compile_layers(decoder_layers(load(tiny_model)))
