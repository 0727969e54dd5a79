"""What ranks hold of gradients between the micro-batches of an update."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from benchmarks.rank_memory.device import joint_work_alone
from services.trainer.batch.collate import collate_sequences
from services.trainer.config import TrainerConfig
from services.trainer.model import model as model_module
from services.trainer.model.model import Policy, load_policy
from services.trainer.rank.process_group import make_mesh
from tests.slow import first_of
from tests.trainer.held_bytes import between_passes
from tests.trainer.test_learner import assert_same_steps, assert_same_weights, run_steps

PPO = {"preset": "ppo", "critic": {"learning_rate": 3e-3}}
OTHER = 20_000
"""Bytes that a pass may leave besides gradients: losses of the few tokens, sums of metrics."""


def grown(held: list[int]) -> list[int]:
    return [one - held[0] for one in held[1:]]


def assert_held(found: list[int], expected: float) -> None:
    assert found
    for one in found:
        assert expected <= one < 1.01 * expected + OTHER


@pytest.mark.parametrize("sync", first_of(["every_micro_batch", "last_micro_batch"]))
def test_two_ranks_hold_their_shards_unless_asked_to_wait(
    rank_groups, tiny_model, make_batch, make_start, sync
) -> None:
    ranks = rank_groups[2]
    model = ranks.load(tiny_model, gradient_sync=sync, micro_batch_tokens=60)
    ranks.call("start_run", make_start(**PPO), 0)
    ranks.call("train", make_batch(1), 0, 1)  # makes what stays: moments, buffers of collectives
    ranks.call("note_held_bytes")
    ranks.call("train", make_batch(2), 1, 2)
    whole = 4 * model.parameters
    for policy, critic in ranks.call("held_bytes"):
        assert len(policy) > 3
        share = 0.5 if sync == "every_micro_batch" else 1.0
        assert_held(grown(policy), share * whole)
        # The critic has no output layer of its own, but one number's.
        assert_held(grown(critic), share * (whole - 4 * 64 * (320 - 1)))


@pytest.mark.parametrize("copies", first_of([1, 2]))
def test_both_ways_give_the_same_update(
    rank_groups, four_ranks, tiny_model, make_batch, make_start, copies
) -> None:
    batches, start = [make_batch(1), make_batch(2)], make_start(**PPO)
    ranks = rank_groups[2] if copies == 1 else four_ranks
    layout = {"micro_batch_tokens": 60, "model_copies": copies}
    late = run_steps(ranks, tiny_model, start, batches, gradient_sync="last_micro_batch", **layout)
    early = run_steps(ranks, tiny_model, start, batches, **layout)
    assert_same_steps(early[0], late[0])
    assert_same_weights(early[1], late[1])


@pytest.fixture
def eight_ranks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process is the first of eight; collectives send nothing and end at once."""
    monkeypatch.setattr(model_module, "joint_work", joint_work_alone)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("copies", [1, 2])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("sync", ["every_micro_batch", "last_micro_batch"])
def test_a_rank_of_eight_holds_its_shard(
    eight_ranks: None, tiny_model: Path, sync: Any, dtype: Any, copies: int
) -> None:
    config = TrainerConfig(
        model=str(tiny_model),
        world_size=8,
        model_copies=copies,
        dtype=dtype,
        gradient_sync=sync,
        activation_checkpointing=True,
    )
    policy = load_policy(config, make_mesh(config), Policy)
    micro, held = collate_sequences([list(range(1, 9))]), list[int]()
    policy(micro, 1.0)[0].sum().backward()
    policy.zero_grad()
    note = between_passes(policy, held)
    for last in (False, False, False, True):
        note(last)
        policy(micro, 1.0)[0].sum().backward()
    whole = 4 * sum(one.numel() for one in policy.parameters())
    share = copies / 8 if sync == "every_micro_batch" else 1.0
    assert_held(grown(held), share * whole)
    own = sum(one.grad.to_local().nbytes for one in policy.parameters() if one.grad is not None)
    assert own == pytest.approx(copies / 8 * whole, rel=0.01)
    assert all(one.dtype == torch.float32 for one in policy.parameters())
