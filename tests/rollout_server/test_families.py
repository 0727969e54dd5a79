"""Exact delivery into experts, another type and parallel workers; see `test_real_engine`."""

from pathlib import Path
from typing import Any

import psutil
import torch
from transformers import Qwen3Config, Qwen3MoeConfig

from .conftest import SMALL, Sender, build_model
from .served import Served, serve, whole

EXPERTS = Qwen3MoeConfig(
    **SMALL,
    head_dim=32,
    num_experts=4,
    num_experts_per_tok=2,
    moe_intermediate_size=32,
    norm_topk_prob=True,
)


async def differences(served: Served, sender: Sender) -> list[float]:
    """Worst logprob difference under each of two versions."""
    found = []
    for seed in (1, 2):
        version = await served.push(sender, seed=seed)
        answer = await whole(served, 60, f"seed {seed}")
        assert answer.spans == [(str(version), 0, 60)]
        found.append(served.worst_difference(answer))
    return found


async def test_a_mixture_of_experts_serves_what_was_sent(tmp_path: Path, sender: Sender) -> None:
    async with serve(build_model(tmp_path, config=EXPERTS)) as served:
        assert max(await differences(served, sender)) < 1e-5


def shared_memory() -> list[str]:
    """Where this process's engine has mapped memory that its workers share."""
    pids = [child.pid for child in psutil.Process().children(recursive=True)]
    maps = "".join(Path(f"/proc/{pid}/maps").read_text() for pid in pids)
    return [line for line in maps.splitlines() if "cpushm" in line]


async def test_every_tensor_parallel_worker_gets_the_same_version(
    tmp_path: Path, sender: Sender
) -> None:
    config = Qwen3Config(**{**SMALL, "num_key_value_heads": 2}, head_dim=32)
    async with serve(build_model(tmp_path, config=config), tensor_parallel_size=2) as served:
        assert max(await differences(served, sender)) < 1e-5
        digests: list[Any] = await served.loader.digests()
        assert shared_memory()
        assert all(line.endswith("(deleted)") for line in shared_memory()), "a killed one leaves it"
    assert len(digests) == 2
    assert digests[0] == digests[1]


async def test_bfloat16_arrives_as_it_was_sent(tmp_path: Path, sender: Sender) -> None:
    """bfloat16 logits are equal to about one part in 256; other weights are far off."""
    async with serve(build_model(tmp_path), dtype="bfloat16") as served:
        served.dtype = torch.bfloat16
        assert max(await differences(served, sender)) < 0.1
        answer = await whole(served, 60, "under the second version")
        served.policies = {"1": served.policies["0"]}
        assert served.worst_difference(answer) > 0.1, "the test cannot tell versions apart"
