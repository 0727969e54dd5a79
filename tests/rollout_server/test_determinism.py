"""An answer of an engine with `determinism` depends on nothing that is computed beside it."""

import asyncio
from pathlib import Path

from transformers import Qwen3Config

from .conftest import SMALL, Sender, build_model
from .served import serve, whole

WIDE = {"hidden_size": 512, "intermediate_size": 1536, "num_attention_heads": 8}
"""From this width on two sequences together round otherwise than one alone."""


async def test_an_answer_is_the_same_alone_and_among_others(tmp_path: Path, sender: Sender) -> None:
    config = Qwen3Config(**SMALL | WIDE, head_dim=64)
    folder = build_model(tmp_path, config=config)
    async with serve(folder, determinism=True) as served:
        await served.push(sender, seed=1)
        alone = await whole(served, 12, "alone")
        others = (whole(served, 12 + more, f"among-{more}") for more in range(4))
        for one in await asyncio.gather(*others):
            assert one.tokens[:12] == alone.tokens
            assert one.logprobs[:12] == alone.logprobs
