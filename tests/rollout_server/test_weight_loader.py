"""The part of one worker: what it reports of the version that it loaded."""

import msgspec
import pytest
import torch

from services.protocol.weights.weights import Dtype, TensorSpec, WeightManifest
from services.rollout_server.engine.vllm_patches import load_plan
from services.rollout_server.weights.weight_loader import StagedWeightLoader
from services.transport.shared_memory import Mappings, SharedBuffer
from services.transport.version_bytes import VersionBytes, block_bytes

SPECS = (
    TensorSpec(name="a", dtype=Dtype.BFLOAT16, shape=(3,), shard_numels=(2, 1)),
    TensorSpec(name="b", dtype=Dtype.FLOAT32, shape=(2, 2), shard_numels=(2, 2)),
)


def worker() -> StagedWeightLoader:
    made = object.__new__(StagedWeightLoader)
    made.model = made.model_config = None
    made._mappings, made._plan = Mappings(kept=1), None
    made.abandon()
    return made


def test_a_worker_loads_the_tensors_that_lie_in_the_memory_it_maps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    digests = (("a1", "b2"), ("c3", "d4"))
    manifest = WeightManifest(
        version=3, train_step=3, tensors=SPECS, buckets=((0, 1), (1, 2)), digests=digests
    )
    buffer = SharedBuffer(block_bytes(manifest))
    sent = {"a": torch.tensor([1, 2, 3]).bfloat16(), "b": torch.arange(4.0).view(2, 2)}
    for name, tensor in VersionBytes(manifest, buffer.bytes).named_tensors():
        tensor.copy_(sent[name])
    loaded: dict[str, torch.Tensor] = {}
    monkeypatch.setattr(load_plan, "load", lambda *args: loaded.update(args[2].named_tensors()))
    one = worker()
    encode = msgspec.msgpack.encode
    one.update_weights({"manifest": encode(manifest), "place": encode(buffer.place(0))})
    one.finish_weight_update()
    assert loaded.keys() == sent.keys()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in sent.items())
    assert one.committed == {"version": 3, "digest": manifest.digest}


def test_nothing_is_loaded_where_nothing_is_staged() -> None:
    with pytest.raises(RuntimeError, match="no version is staged"):
        worker().finish_weight_update()
