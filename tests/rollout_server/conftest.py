"""Models small enough to build on the fly, and a sender that speaks the real wire format."""

import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
)

from tests.transport.sender import HOST, Fault, Sender, sender

__all__ = ["HOST", "Fault", "Sender", "sender"]


@pytest.fixture(scope="session", autouse=True)
def _sockets() -> Iterator[None]:
    """Engines leave their sockets behind; a socket's path must be short."""
    with (
        tempfile.TemporaryDirectory(prefix="vllm-") as folder,
        pytest.MonkeyPatch.context() as set_,
    ):
        set_.setenv("VLLM_RPC_BASE_PATH", folder)
        yield


SMALL = {
    "vocab_size": 272,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 1024,
    "eos_token_id": 1,
    "pad_token_id": 0,
}


def build_model(
    folder: Path, *, tied: bool = False, config: Any = None, more_tokens: tuple[str, ...] = ()
) -> Path:
    """A two-layer model, by default a Qwen3, and a byte tokenizer with a chat template."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {
        token: index for index, token in enumerate(["<pad>", "<eos>", *alphabet, *more_tokens])
    }
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<pad>")
    fast.add_special_tokens({"additional_special_tokens": list(more_tokens)})
    fast.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    fast.save_pretrained(folder)
    config = config or Qwen3Config(**SMALL, head_dim=32, tie_word_embeddings=tied)
    config.architectures = [type(AutoModelForCausalLM.from_config(config)).__name__]
    config.save_pretrained(folder)
    return folder


def policy(folder: Path, seed: int, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """The model of `folder` with weights of its own; versions differ strongly."""
    torch.manual_seed(seed)
    config = AutoConfig.from_pretrained(folder)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def app(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Any]:
    """vLLM's application as a replica serves it, for every test that only asks it."""
    from .http_served import serve_http

    folder = build_model(
        tmp_path_factory.mktemp("app"), more_tokens=("<think>", "</think>", *TOOL_TOKENS)
    )
    store = TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    arguments = {
        "enable_auto_tool_choice": True,
        "tool_call_parser": "hermes",
        "reasoning_parser": "deepseek_v3",
        "enable_tokenizer_info_endpoint": True,
        # A model of random weights would fill its answer with blanks.
        "structured_outputs_config": {
            "backend": "xgrammar",
            "disable_any_whitespace": True,
            "enable_in_reasoning": True,
            "reasoning_parser": "deepseek_v3",
        },
    }
    async with serve_http(folder, engine_args=arguments) as one:
        sender = Sender(store)
        await one.served.push(sender, seed=1)
        sender.join()
        sender.groups.clear()
        yield one


TOOL_TOKENS = ("<tool_call>", "</tool_call>")
