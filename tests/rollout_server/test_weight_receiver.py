"""The receiver of one worker: what it reports of the version that it loaded."""

from types import SimpleNamespace

import pytest

from services.protocol.weights.weights import WeightManifest
from services.rollout_server.engine.vllm_patches import layerwise_load
from services.rollout_server.weights.weight_receiver import StagedWeightReceiver


def test_a_worker_reports_the_digest_that_the_bus_records(monkeypatch: pytest.MonkeyPatch) -> None:
    digests = (("a1", "b2"), ("c3", "d4"))
    manifest = WeightManifest(version=3, train_step=3, tensors=(), buckets=(), digests=digests)
    staged = SimpleNamespace(complete=True, manifest=manifest, named_tensors=list)
    monkeypatch.setattr(layerwise_load, "load", lambda *args: None)
    receiver = object.__new__(StagedWeightReceiver)
    receiver.model = receiver.model_config = None
    receiver._staged, receiver._keep_copy = staged, False  # type: ignore[assignment]
    receiver.finish_weight_update()
    assert receiver.committed == {"version": 3, "digest": manifest.digest}
