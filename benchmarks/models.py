"""Qwen3 models of random weights; also made in the environments of peers, without Millrace."""

from pathlib import Path

Shape = tuple[int, int, int, int, int, int]
"""Hidden size, intermediate size, layers, heads, key-value heads, head size."""


def make_model(
    folder: Path, shape: Shape, *, vocabulary: int, tied: bool = False, seed: int = 0
) -> Path:
    """Write a checkpoint in float32, with a tokenizer of bytes, into the folder, and return it."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.manual_seed(seed)
    hidden, intermediate, layers, heads, kv_heads, head_dim = shape
    config = Qwen3Config(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        max_position_embeddings=4096,
        tie_word_embeddings=tied,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = {token: index for index, token in enumerate(["<pad>", "<eos>", *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=tokens, merges=[]))
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<pad>")
    fast.save_pretrained(folder)
    return folder
