"""A step on one GPU beside a plain loop, and its memory beside the sizing."""

import gc
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
from tests.gpu.test_train_step import batch, learner, train

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

ROWS, LENGTH = 8, 1024
LEARNING_RATE = 1e-5
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
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"activation_checkpointing": True},
        {"activation_checkpointing": True, "activation_offload": True},
        {"offload": "optimizer"},
        {"offload": "all"},
        {"moments": "8bit"},
        {"lora": {"rank": 32, "alpha": 32.0}},
    ],
    ids=lambda settings: "-".join(settings) or "plain",
)
def test_the_sizing_says_within_a_tenth_what_a_step_takes(
    model: Path, tmp_path: Path, group: None, settings: dict[str, Any]
) -> None:
    if "moments" in settings:
        pytest.importorskip("torchao")
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    subject = learner(
        model,
        tmp_path,
        device="cuda",
        dtype="bfloat16",
        micro_batch_tokens=ROWS * LENGTH,
        **settings,
    )
    work = [batch(2 * ROWS, LENGTH, step) for step in (1, 2)]
    train(subject, work[0], 0, 1)
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.synchronize()
    began = time.perf_counter()
    done = train(subject, work[1], 1, 2)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    found = torch.cuda.max_memory_allocated() - before
    free, total = torch.cuda.mem_get_info()
    shape = ModelShape.of(SHAPE | {"model_type": "qwen3"})
    training = Training(shape=shape, trainer=subject[0]._config)
    limit = subject[0].model.peak_flops
    figures = {
        "device": torch.cuda.get_device_name(),
        "settings": settings,
        "most_gib": round(found / 2**30, 2),
        "by_sizing_gib": round(rank_bytes(training) / 2**30, 2),
        "beside_tensors_gib": round((total - free - torch.cuda.memory_reserved()) / 2**30, 2),
        "reserved_gib": round(torch.cuda.max_memory_reserved() / 2**30, 2),
        "loss": done.metrics["loss"],
        "grad_norm": done.metrics["grad_norm"],
        "seconds": round(seconds, 3),
        "mfu": round(done.flops / seconds / limit, 3) if limit else None,
    }
    print(json.dumps(figures))
    assert rank_bytes(training) == pytest.approx(found, rel=0.1)
