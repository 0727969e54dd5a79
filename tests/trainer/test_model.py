"""What is done to a model before it is sharded."""

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

from services.trainer.model.model_check import remove_randomness

MODELS = {
    "llama": LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=1,
        num_attention_heads=2,
        attention_dropout=0.5,
    ),
    "gpt2": GPT2Config(vocab_size=32, n_embd=16, n_layer=1, n_head=2, embd_pdrop=0.5),
}


@pytest.mark.parametrize("family", MODELS)
def test_a_model_in_training_scores_the_same_tokens_alike(family: str) -> None:
    model = AutoModelForCausalLM.from_config(MODELS[family]).train()
    ids = torch.arange(20)[None]
    assert not torch.equal(model(ids).logits, model(ids).logits), "the model has no dropout"
    remove_randomness(model)
    assert torch.equal(model(ids).logits, model(ids).logits)
