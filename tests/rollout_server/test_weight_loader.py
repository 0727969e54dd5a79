"""The part of one worker: what it reports of the version that it loaded."""

import threading
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch

from services.protocol.weights.weights import Dtype, TensorSpec, WeightManifest
from services.rollout_server.engine.vllm_patches.loading import load_plan
from services.rollout_server.weights.read_back import ReadBack
from services.rollout_server.weights.weight_loader import StagedWeightLoader
from services.transport.shared_memory import Mappings, SharedBuffer
from services.transport.version_bytes import VersionBytes, block_bytes
from tests.transport.fake_host_memory import FakeHostMemory

SPECS = (
    TensorSpec(name="a", dtype=Dtype.BFLOAT16, shape=(3,), shard_numels=(2, 1)),
    TensorSpec(name="b", dtype=Dtype.FLOAT32, shape=(2, 2), shard_numels=(2, 2)),
)


MANIFEST = WeightManifest(
    version=3,
    train_step=3,
    tensors=SPECS,
    buckets=((0, 1), (1, 2)),
    digests=(("a1", "b2"), ("c3", "d4")),
)


def worker(gpu: torch.device | None = None) -> StagedWeightLoader:
    made = object.__new__(StagedWeightLoader)
    made.model = made.model_config = None
    made._mappings, made._plan = Mappings(kept=1, gpu=gpu), None
    made._read_back = ReadBack()
    made.start_weight_update()
    return made


def stage(one: StagedWeightLoader, buffer: SharedBuffer) -> None:
    encode = msgspec.msgpack.encode
    one.update_weights({"manifest": encode(MANIFEST), "place": encode(buffer.place(0))})


def test_a_worker_loads_the_tensors_that_lie_in_the_memory_it_maps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    buffer = SharedBuffer(block_bytes(MANIFEST))
    sent = {"a": torch.tensor([1, 2, 3]).bfloat16(), "b": torch.arange(4.0).view(2, 2)}
    for name, tensor in VersionBytes(MANIFEST, buffer.bytes).named_tensors():
        tensor.copy_(sent[name])
    loaded: dict[str, torch.Tensor] = {}

    def load(*args: Any) -> Any:
        loaded.update(args[2].named_tensors())
        return SimpleNamespace(traced=[])

    monkeypatch.setattr(load_plan, "load", load)
    one = worker()
    stage(one, buffer)
    one.finish_weight_update()
    assert loaded.keys() == sent.keys()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in sent.items())
    assert one.committed == {"version": 3, "digest": MANIFEST.digest}


def test_a_version_is_held_until_it_is_read_back_or_the_next_update_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(load_plan, "load", lambda *args: SimpleNamespace(traced=[]))
    buffer, one = SharedBuffer(block_bytes(MANIFEST)), worker()
    for end in (one.read_back, one.start_weight_update):
        assert buffer.begin_writing()
        stage(one, buffer)
        one.finish_weight_update()
        assert not buffer.begin_writing()
        end()
    assert buffer.begin_writing()
    assert one.read_back() is None


def test_after_weights_that_are_not_as_sent_the_load_is_not_repeated_as_it_was(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plans: list[Any] = []

    def load(*args: Any) -> Any:
        plans.append(args[3])
        return SimpleNamespace(traced=[])

    monkeypatch.setattr(load_plan, "load", load)
    monkeypatch.setattr(ReadBack, "check", lambda *args: "a and 0 others" if plans[1:] else None)
    buffer, one = SharedBuffer(block_bytes(MANIFEST)), worker()
    found = []
    for _ in range(3):
        stage(one, buffer)
        one.finish_weight_update()
        found.append(one.read_back())
    assert found == [None, "a and 0 others", "a and 0 others"]
    assert [one is None for one in plans] == [True, False, True]


def test_cuda_registers_a_versions_memory_beside_the_workers_turn_for_the_next_load_from_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cuda, gpu = FakeHostMemory(monkeypatch), torch.device("cuda", 1)
    monkeypatch.setattr(load_plan, "load", lambda *args: SimpleNamespace(traced=[]))
    buffer, one = SharedBuffer(block_bytes(MANIFEST)), worker(gpu)
    cuda.gate.clear()
    for _ in range(2):
        stage(one, buffer)
        one.finish_weight_update()
        assert (one.pageable, cuda.registered) == (True, {})
    cuda.gate.set()
    for thread in threading.enumerate():
        if thread.name == "pin":
            thread.join()
    stage(one, buffer)
    assert not one.pageable
    assert len(cuda.registered) == 1


def test_nothing_is_loaded_where_nothing_is_staged() -> None:
    with pytest.raises(RuntimeError, match="no version is staged"):
        worker().finish_weight_update()
