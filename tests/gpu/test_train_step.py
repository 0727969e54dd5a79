"""A 0.5B-shaped Qwen3 on one GPU: the CPU's losses, and what the step costs."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from transformers import Qwen3Config, Qwen3ForCausalLM

from services.protocol.run.algorithm import AlgorithmConfig
from services.protocol.train_batch import ScoredTrajectory, TrainBatch, TrainGroup
from services.protocol.trainer import RunStart
from services.protocol.trajectory import PolicySpan, Trajectory
from services.trainer.config import TrainerConfig
from services.trainer.rank.learner import Learner
from services.trainer.rank.process_group import join_group, open_store
from services.trainer.rank.rank_messages import RankStep
from tests.batches import GroupBatch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

SHAPE: dict[str, Any] = {
    "vocab_size": 151_936,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "tie_word_embeddings": True,
}


@pytest.fixture(scope="module")
def half_billion(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("qwen3-0.5b")
    torch.manual_seed(0)
    Qwen3ForCausalLM(Qwen3Config(**SHAPE)).save_pretrained(folder)
    return folder


@pytest.fixture
def group() -> Iterator[None]:
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def batch(answers: int, length: int, step: int = 1) -> TrainBatch:
    draw = torch.Generator().manual_seed(step)
    made = []
    for index in range(answers):
        size = length - 37 * (index % 5)  # uneven, so that packing matters
        ids = torch.randint(151_000, (32 + size,), generator=draw).tolist()
        trajectory = Trajectory(
            prompt_token_ids=tuple(ids[:32]),
            response_token_ids=tuple(ids[32:]),
            behaviour_logprobs=(-12.0,) * size,
            loss_mask=(1,) * size,
            spans=(PolicySpan(version=0, start=0, end=size, replica_id="none"),),
            finish_reason="stop",
            text="",
        )
        made.append(ScoredTrajectory(trajectory=trajectory, reward=float(index % 2)))
    groups = (TrainGroup(group_id=0, trajectories=tuple(made)),)
    return GroupBatch(run_id="run", step=step, groups=groups).built


def learner(model: Path, folder: Path, **settings: Any) -> tuple[Learner, RunStart]:
    config = TrainerConfig(model=str(model), world_size=1, canary_sequences=0, **settings)
    if dist.is_initialized():
        dist.destroy_process_group()
    join_group(config, 0, open_store("127.0.0.1"), "127.0.0.1")
    made = Learner(config)
    algorithm = AlgorithmConfig(learning_rate=1e-6)
    start = RunStart(
        run_id="run", checkpoint_dir=str(folder), algorithm=algorithm, temperature=1.0, seed=0
    )
    made.start_run(start, 0)
    return made, start


def train(
    subject: tuple[Learner, RunStart], batch: TrainBatch, held: int, version: int
) -> RankStep:
    learner, start = subject
    return learner.train(learner.model.plan(batch, start).part(0), held, version)


@pytest.mark.timeout(900)
def test_bfloat16_steps_on_the_gpu_have_the_losses_of_float32_on_the_cpu(
    half_billion: Path, tmp_path: Path, group: None
) -> None:
    small = batch(4, 160)
    expected = train(learner(half_billion, tmp_path / "cpu", threads_per_rank=8), small, 0, 1)
    on_gpu = learner(half_billion, tmp_path / "gpu", device="cuda", dtype="bfloat16")
    found = train(on_gpu, small, 0, 1)
    assert found.tokens == expected.tokens
    for name, tolerance in {"loss": 0.02, "entropy": 0.02, "grad_norm": 0.05}.items():
        wanted = expected.metrics[name]
        assert found.metrics[name] == pytest.approx(wanted, rel=tolerance, abs=1e-3), name


@pytest.mark.timeout(600)
@pytest.mark.parametrize("checkpointing", [False, True])
def test_what_a_step_of_half_a_billion_parameters_costs(
    half_billion: Path, tmp_path: Path, group: None, checkpointing: bool
) -> None:
    subject = learner(
        half_billion,
        tmp_path,
        device="cuda",
        dtype="bfloat16",
        activation_checkpointing=checkpointing,
        micro_batch_tokens=16384,
    )
    work = [batch(64, 1024, step) for step in (1, 2, 3)]
    tokens = len(work[-1].rows.ids)
    for step in (1, 2):
        train(subject, work[step - 1], step - 1, step)
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.synchronize()
    began = time.perf_counter()
    done = train(subject, work[2], 2, 3)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - began
    assert done.metrics["grad_norm"] > 0
    peak = torch.cuda.max_memory_allocated() / 2**30
    limit = subject[0].model.peak_flops
    figures = {
        "device": torch.cuda.get_device_name(),
        "activation_checkpointing": checkpointing,
        "tokens_per_s": round(tokens / seconds),
        "seconds": {k: round(v, 4) for k, v in done.seconds.items()},
        "peak_gib": round(peak, 2),
        "mfu": round(done.flops / seconds / limit, 3) if limit else None,
    }
    print(json.dumps(figures))
    assert peak < 70
