"""The canary's sequences are what the policy would say, the same on every rank."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from services.trainer.snapshot.canary_sequences import PASSES, TOKENS


@pytest.fixture(scope="module")
def sharp_model(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Logits far enough apart that some tokens are likely and others never sampled."""
    folder = tmp_path_factory.mktemp("sharp")
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tiny_model))
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(60.0)
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(("ranks", "shared"), [(1, 1), (2, 1), (2, 2)])
def test_the_sequences_are_likely(
    rank_groups: Any, sharp_model: Path, ranks: int, shared: int
) -> None:
    group = rank_groups[ranks]
    config = group.config(sharp_model, context_parallel=shared)
    canaries = [model.canary for model in group.call("load", config)]
    assert all(one == canaries[0] for one in canaries)
    sequences = torch.tensor(canaries[0])
    assert sequences.shape == (8, TOKENS)
    model = AutoModelForCausalLM.from_pretrained(sharp_model)
    with torch.no_grad():
        logs = model(sequences).logits[:, :-1].log_softmax(-1)
    of_tokens = logs.gather(-1, sequences[:, 1:, None])[..., 0]
    expected = float((logs.exp() * logs).sum(-1)[:, :PASSES].mean())
    at_random = float(logs.mean())
    # The first tokens are true samples: their mean logprob is the entropy, negated.
    assert float(of_tokens[:, :PASSES].mean()) == pytest.approx(expected, abs=1.0)
    assert float(of_tokens.mean()) > (expected + at_random) / 2
    assert expected > -0.8 * math.log(model.config.vocab_size)


def test_a_run_has_sequences_of_its_own_weights(
    rank_groups: Any, sharp_model: Path, make_start: Any, make_batch: Any
) -> None:
    group = rank_groups[2]
    group.load(sharp_model)
    first = group.call("start_run", make_start(learning_rate=0.05), 0)[0].canary
    for step in (1, 2, 3):
        group.call("train", make_batch(step, groups=3), 0, step)
    group.call("save", 3)
    again = group.call("start_run", make_start(learning_rate=0.05), 4)
    assert [one.step for one in again] == [3, 3]
    assert again[0].canary == again[1].canary != first


def test_no_sequences_are_none(rank_groups: Any, sharp_model: Path) -> None:
    assert rank_groups[1].load(sharp_model, canary_sequences=0).canary == ()
