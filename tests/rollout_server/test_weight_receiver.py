"""The receiver of one worker: what it reports of the version that it loaded."""

from types import SimpleNamespace

import pytest
import torch

from services.protocol.weights.weights import WeightManifest
from services.rollout_server.engine.vllm_patches import layerwise_load
from services.rollout_server.weights import weight_receiver
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


def test_a_worker_opens_links_for_its_own_device(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[object] = []

    def make_link(*given: object) -> SimpleNamespace:
        opened.append(given)
        return SimpleNamespace(open=lambda: None)

    monkeypatch.setattr(weight_receiver, "make_link", make_link)
    receiver = object.__new__(StagedWeightReceiver)
    receiver.device = torch.device("cuda", 5)  # not the current one of a receiving thread
    receiver.parallel_config = SimpleNamespace(rank=1)
    receiver._links, receiver._host = {}, "10.0.0.7"
    link = SimpleNamespace(prefix="r0/1t0")
    receiver._open(link)
    assert opened == [(link, "10.0.0.7", 2, receiver.device)]
