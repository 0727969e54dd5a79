"""A model of a few kilobytes that vLLM serves on a CPU."""

from pathlib import Path

MARKS = {286: "<think>", 287: "</think>", 288: "<tool_call>", 289: "</tool_call>"}
"""Tokens that parsers look for."""


def make_model(folder: Path) -> None:
    """Save an untrained model that speaks bytes, with the marks of thought and tool calls."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(0)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320 - len(MARKS),
        special_tokens=["<pad>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["# larger of a and 7, times c\nreturn max(a,7)*c"] * 20, trainer)
    # Not as special ones: text keeps them, as in Qwen's models.
    tokenizer.add_tokens(list(MARKS.values()))
    assert {number: tokenizer.id_to_token(number) for number in MARKS} == MARKS
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<pad>"
    )
    fast.chat_template = (
        "{% for m in messages %}<|im_start|>{{m.role}}\n{{m.content}}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    config = Qwen3Config(
        vocab_size=320,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=1024,
        tie_word_embeddings=False,
        eos_token_id=2,
        pad_token_id=0,
    )
    Qwen3ForCausalLM(config).to(torch.float32).save_pretrained(folder)
    fast.save_pretrained(folder)
