"""Two copies of the model on four ranks: the same maths, sent and written once."""

import asyncio
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from services.protocol.errors import InvalidInput
from services.protocol.weights.hello import TrainerHello
from services.trainer.config import LoraConfig, TrainerConfig
from services.trainer.rank import rank as rank_module
from services.trainer.rank.rank import TrainerRank
from tests.trainer.sent import sent_tensors
from tests.trainer.test_learner import assert_same_steps, assert_same_weights, run_steps

PPO = {
    "preset": "ppo",
    "kl": {"coefficient": 0.2, "estimator": "k1", "where": "reward"},
    "critic": {"learning_rate": 3e-3},
}


@pytest.mark.parametrize("algorithm", [{"minibatches": 2, "ratio_anchor": "proximal"}, PPO])
def test_four_ranks_in_two_copies_do_what_one_rank_does(
    rank_groups, four_ranks, tiny_model, make_batch, make_start, algorithm
) -> None:
    batches, start = [make_batch(1), make_batch(2)], make_start(**algorithm)
    expected = run_steps(rank_groups[1], tiny_model, start, batches)
    found = run_steps(four_ranks, tiny_model, start, batches, model_copies=2, micro_batch_tokens=60)
    assert_same_steps(found[0], expected[0])
    assert_same_weights(found[1], expected[1])


@pytest.mark.parametrize("lora", [None, LoraConfig(rank=3, alpha=12.0, targets=("q_proj",))])
def test_what_travels_is_the_first_copy_whole_and_nothing_of_the_other(
    four_ranks, tiny_model, make_batch, make_start, lora
) -> None:
    described = four_ranks.load(tiny_model, model_copies=2, lora=lora)
    four_ranks.call("start_run", make_start(), 0)
    steps = four_ranks.call("train", make_batch(1), 0, 1)
    assert [bool(step.digests) for step in steps] == [True, True, False, False]
    buckets = four_ranks.call("snapshot_bytes", 1)
    assert buckets[2:] == [[], []]
    sent, held = sent_tensors(described, buckets[:2]), four_ranks.call("full_tensors")[0]
    assert sent.keys() == held.keys()
    adapted = {name for name in held if "q_proj" in name} if lora else set()
    for name, tensor in sent.items():
        assert np.array_equal(tensor, held[name]) == (name not in adapted), name


def test_a_checkpoint_holds_one_copy_and_goes_on_on_other_meshes(
    rank_groups, four_ranks, tiny_model, make_batch, make_start
) -> None:
    start = make_start()
    run_steps(four_ranks, tiny_model, start, [make_batch(1)], model_copies=2)
    assert [one.saved_step for one in four_ranks.call("save", 1)] == [1] * 4
    (checkpoint,) = Path(start.checkpoint_dir).glob("step-*")
    stored = sum(file.stat().st_size for file in checkpoint.glob("*.distcp"))
    elements = sum(math.prod(one.shape) for one in four_ranks.call("full_tensors")[0].values())
    whole = 3 * 4 * elements  # weights and both moments in float32
    assert whole < stored < 1.2 * whole
    expected = four_ranks.call("train", make_batch(2), 1, 2)[0]
    weights = four_ranks.call("full_tensors")[0]
    for ranks, settings in ((rank_groups[1], {}), (rank_groups[2], {"model_copies": 2})):
        ranks.load(tiny_model, **settings)
        assert ranks.call("start_run", start, 7)[0].step == 1
        continued = ranks.call("train", make_batch(2), 1, 2)[0]
        assert_same_steps([continued], [expected])
        assert_same_weights(ranks.call("full_tensors")[0], weights)
    assert [one.saved_step for one in rank_groups[2].call("save", 2)] == [2, 2]
    four_ranks.load(tiny_model, model_copies=2)
    assert four_ranks.call("start_run", start, 8)[0].step == 2
    assert_same_weights(four_ranks.call("full_tensors")[0], weights)


class FakeBus:
    """Takes ranks in and never has an order for them."""

    def __init__(self) -> None:
        self.hellos: list[TrainerHello] = []

    async def register_trainer(self, hello: TrainerHello) -> None:
        self.hellos.append(hello)

    async def next_orders(self, *_: Any) -> None:
        await asyncio.Event().wait()


async def test_only_ranks_of_the_first_copy_are_members_of_the_bus(monkeypatch) -> None:
    bus, config = FakeBus(), TrainerConfig(model="m", world_size=4, model_copies=2)
    loaded = SimpleNamespace(model="described", snapshots=None, gpu=None)
    monkeypatch.setattr(rank_module.ray.util, "get_node_ip_address", lambda: "127.0.0.1")
    monkeypatch.setattr(rank_module, "bus_peer", lambda: bus)
    monkeypatch.setattr(rank_module, "_import_torch", lambda: None)
    monkeypatch.setattr(TrainerRank, "_load", lambda self, *_: loaded)
    ranks = [TrainerRank(config, "group", index) for index in range(4)]
    assert [await one.join(("127.0.0.1", 0)) for one in ranks] == ["described"] * 4
    lives = [asyncio.create_task(one.follow_bus()) for one in ranks]
    done, _ = await asyncio.wait(lives, timeout=0.05)
    assert not done, "a rank without a part in the bus lives on"
    for life in lives:
        life.cancel()
    await asyncio.gather(*lives, return_exceptions=True)
    assert [(one.rank, one.world_size) for one in bus.hellos] == [(0, 2), (1, 2)]


def test_copies_that_cannot_share_the_ranks_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"divisor of world_size"):
        TrainerConfig.from_data(
            {"model": "m", "world_size": 4, "model_copies": 3}, source="trainer"
        )
    assert TrainerConfig(model="m", world_size=6, model_copies=3).shards == 2
