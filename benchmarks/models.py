"""Models and trainers that peers use as well, in environments without Millrace."""

from pathlib import Path
from typing import Any

Shape = tuple[int, int, int, int, int, int]
"""Hidden size, intermediate size, layers, heads, key-value heads, head size."""


def make_model(
    folder: Path,
    shape: Shape,
    *,
    vocabulary: int,
    tied: bool = False,
    seed: int = 0,
    experts: tuple[int, int] | None = None,
    positions: int = 4096,
) -> Path:
    """Write a Qwen3 of random float32 weights and a tokenizer of bytes into the folder.

    Args:
        experts: of each layer, and how many of them a token meets; None: a dense model.
        positions: longest row.
    """
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.manual_seed(seed)
    hidden, intermediate, layers, heads, kv_heads, head_dim = shape
    mixture: dict[str, int] = {}
    if experts is not None:
        mixture = {"num_experts": experts[0], "num_experts_per_tok": experts[1]}
        mixture["moe_intermediate_size"] = intermediate
    config = AutoConfig.for_model(
        "qwen3_moe" if experts else "qwen3",
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        max_position_embeddings=positions,
        tie_word_embeddings=tied,
        **mixture,
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokens = {token: index for index, token in enumerate(["<pad>", "<eos>", *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=tokens, merges=[]))
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<pad>")
    fast.save_pretrained(folder)
    return folder


def on_cpu(folder: Path) -> dict[str, Any]:
    """Arguments of TRL's trainers without a GPU, which keep nothing and print nothing."""
    return {
        "output_dir": str(folder),
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "logging_steps": 10**9,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
    }
