"""A small Qwen3 with random weights, warm-started on mostly buggy demonstrations."""

import random

import torch
from transformers import (
    GenerationConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.utils import logging

from examples.tiny_code.tasks import SHARE_RIGHT, Spec, split_specs
from examples.tiny_code.tokenizer import answer_ids, prompt_ids, train_tokenizer

STEPS = 100
BATCH = 64
LEARNING_RATE = 4e-3
RISING_STEPS = 20


def make_checkpoint(folder: str, seed: int, steps: int = STEPS) -> None:
    """Train tokenizer and model, for so many of the `STEPS`, and write both to `folder`."""
    logging.disable_progress_bar()
    torch.set_num_threads(1)  # more cost time at this size
    tokenizer = train_tokenizer(_texts())
    model = new_model(tokenizer, seed)
    _warm_start(model, tokenizer, seed, steps)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _texts() -> list[str]:
    """What the tokenizer is trained on: no more than the warm start may see."""
    train, _ = split_specs()
    texts = [f"user\n{spec.prompt}\nassistant\n" for spec in train]
    texts += [spec.answer(right=right) for spec in train for right in (True, False)]
    return texts


def new_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen3ForCausalLM:
    """0.14 M parameters, untied: a CPU engine repacks linear layers, and a tied output
    layer would not follow its embedding through a weight update."""
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=-(-len(tokenizer) // 16) * 16,
        hidden_size=64,
        intermediate_size=192,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = Qwen3ForCausalLM(config).to(torch.float32)
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    return model


def _warm_start(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, seed: int, steps: int
) -> None:
    """Imitate demonstrations; the loss is on the answers only."""
    choose = random.Random(seed)
    train, _ = split_specs()
    prompts = {spec: prompt_ids(tokenizer, spec.prompt) for spec in train}
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), weight_decay=0.0)
    for step in range(steps):
        rate = min(1.0, (step + 1) / RISING_STEPS) * max(0.1, 1 - step / STEPS)
        optimizer.param_groups[0]["lr"] = LEARNING_RATE * rate
        specs = [choose.choice(train) for _ in range(BATCH)]
        answers = [_demonstration(spec, tokenizer, choose) for spec in specs]
        loss = imitation_loss(model, [prompts[spec] for spec in specs], answers)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()


def _demonstration(
    spec: Spec, tokenizer: PreTrainedTokenizerFast, choose: random.Random
) -> list[int]:
    return answer_ids(tokenizer, spec.answer(right=choose.random() < SHARE_RIGHT))


def imitation_loss(
    model: Qwen3ForCausalLM, prompts: list[list[int]], answers: list[list[int]]
) -> torch.Tensor:
    """Mean cross entropy of the answers' tokens; rows are padded on the right."""
    rows = [prompt + answer for prompt, answer in zip(prompts, answers, strict=True)]
    length = max(map(len, rows))
    ids = torch.zeros(len(rows), length, dtype=torch.long)
    labels = torch.full((len(rows), length), -100)
    attention = torch.zeros(len(rows), length, dtype=torch.long)
    for index, (prompt, row) in enumerate(zip(prompts, rows, strict=True)):
        ids[index, : len(row)] = torch.tensor(row)
        attention[index, : len(row)] = 1
        labels[index, len(prompt) : len(row)] = torch.tensor(row[len(prompt) :])
    first = min(map(len, prompts)) - 1  # no logits for what is prompt in every row
    hidden = model.model(input_ids=ids, attention_mask=attention).last_hidden_state
    logits = model.lm_head(hidden[:, first:-1])
    return torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), labels[:, first + 1 :].flatten(), ignore_index=-100
    )
