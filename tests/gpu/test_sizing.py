"""A step on one GPU beside a plain loop, and its memory beside the sizing."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

from services.trainer.batch.collate import MicroBatch, collate_sequences
from services.trainer.config import TrainerConfig
from services.trainer.model.model import Policy, load_policy
from services.trainer.rank.process_group import join_group, make_mesh, open_store
from services.trainer.sizing.rank_memory import rank_bytes
from services.trainer.sizing.shape import ModelShape
from services.trainer.sizing.training import Training
from services.trainer.step.update import make_adamw, update

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

ROWS, LENGTH = 8, 1024
LEARNING_RATE = 1e-5
PEAK_FLOPS = {"H100": 989e12, "H200": 989e12, "A100": 312e12, "L40": 181e12}
"""Dense bfloat16, from the makers' data sheets."""
SHAPE: dict[str, Any] = {
    "vocab_size": 151_936,
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "tie_word_embeddings": False,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("qwen3")
    torch.manual_seed(0)
    Qwen3ForCausalLM(Qwen3Config(**SHAPE)).save_pretrained(folder)
    return folder


@pytest.fixture
def group() -> Iterator[None]:
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def _rows() -> list[list[int]]:
    draw = torch.Generator().manual_seed(1)
    return torch.randint(151_000, (ROWS, LENGTH), generator=draw).tolist()


def _config(model: Path, **settings: Any) -> TrainerConfig:
    whole: dict[str, Any] = {"model": str(model), "world_size": 1, "device": "cuda"}
    tokens = {"dtype": "bfloat16", "micro_batch_tokens": ROWS * LENGTH}
    return TrainerConfig.model_validate(whole | tokens | settings)


def _policy(config: TrainerConfig) -> tuple[Policy, torch.optim.Optimizer]:
    join_group(config, 0, open_store("127.0.0.1"), "127.0.0.1")
    policy = load_policy(config, make_mesh(config), Policy)
    return policy, make_adamw(
        policy.trained_parameters(), config, learning_rate=LEARNING_RATE, weight_decay=0.0
    )


def _step(policy: Policy, optimizer: torch.optim.Optimizer, micro: MicroBatch) -> float | None:
    """Two micro-batches and an update."""
    for last in (False, True):
        policy.reduce_gradients(last)
        logprobs, _ = policy(micro, 1.0, "value")
        (-logprobs.mean() / 2).backward()  # type: ignore[no-untyped-call]
    return update(optimizer, policy.trained_parameters(), [], grad_clip=1.0)


@pytest.mark.timeout(600)
def test_a_step_has_the_gradient_norm_of_a_plain_loop(model: Path, group: None) -> None:
    policy, optimizer = _policy(_config(model))
    norm = _step(policy, optimizer, collate_sequences(_rows()).to(torch.device("cuda")))
    plain = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).cuda()
    rows = torch.tensor(_rows(), device="cuda")
    for row in rows:
        (plain(row[None], labels=row[None]).loss / ROWS).backward()
    expected = torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
    assert norm == pytest.approx(expected.item(), rel=0.05)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_sizing_says_within_a_tenth_what_a_step_takes(
    model: Path, group: None, checkpointing: bool
) -> None:
    config = _config(model, activation_checkpointing=checkpointing)
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    policy, optimizer = _policy(config)
    micro = collate_sequences(_rows()).to(torch.device("cuda"))
    _step(policy, optimizer, micro)
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.synchronize()
    began = time.perf_counter()
    _step(policy, optimizer, micro)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    found = torch.cuda.max_memory_allocated() - before
    shape = ModelShape.of(SHAPE | {"model_type": "qwen3"})
    training = Training(shape=shape, trainer=config)
    name = torch.cuda.get_device_name()
    peak = next((value for key, value in PEAK_FLOPS.items() if key in name), None)
    # 6 flops a parameter and token, PaLM, arXiv 2204.02311, appendix B, without attention's.
    flops = 6 * training.parameters * 2 * ROWS * LENGTH / seconds
    print(
        json.dumps(
            {
                "device": name,
                "most_gib": round(found / 2**30, 2),
                "by_sizing_gib": round(rank_bytes(training) / 2**30, 2),
                "mfu": round(flops / peak, 3) if peak else None,
            }
        )
    )
    assert rank_bytes(training) == pytest.approx(found, rel=0.1)
