"""Buffers of a checkpoint go with its parameters, in their own element type."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from services.protocol.errors import InvalidInput
from services.protocol.weights.weights import WeightManifest
from services.trainer.checkpoints.export import export
from services.trainer.config import TrainerConfig
from services.trainer.experts.routing import SIGMOID
from services.trainer.model.blank import refuse_unsendable
from services.transport.version_bytes import VersionBytes, block_bytes
from tests.trainer.test_experts import FAMILIES, SIZES

# An odd number of experts: in bfloat16 what follows a shard may begin where float32 cannot.
BIASED: dict[str, dict[str, Any]] = {
    "deepseek_v3": {"n_routed_experts": 9, "n_group": 1},
    "glm4_moe": {"n_routed_experts": 9, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1},
}
NAME = f"model.layers.1.mlp.gate.{SIGMOID}"
FILE = "model.safetensors"
LORA = {"lora": {"rank": 4, "alpha": 8, "push": "merged"}}


@pytest.fixture(scope="module", params=BIASED)
def folder(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    family = request.param
    made = tmp_path_factory.mktemp(family)
    sizes = SIZES | FAMILIES.get(family, {}) | BIASED[family]
    causal = AutoModelForCausalLM.from_config(CONFIG_MAPPING[family](**sizes))
    biases = [one for name, one in causal.named_buffers() if name == NAME]
    biases[0].normal_(std=0.01)
    causal.save_pretrained(made)
    return made


def received(described: Any, ranks: list[list[bytes]]) -> dict[str, Tensor]:
    """What a rollout server loads."""
    manifest = WeightManifest(
        version=1,
        train_step=1,
        tensors=described.tensors,
        buckets=described.buckets,
        digests=tuple(tuple("" for _ in buckets) for buckets in ranks),
    )
    staged = VersionBytes(manifest, torch.zeros(block_bytes(manifest), dtype=torch.uint8))
    for rank, buckets in enumerate(ranks):
        for bucket, payload in enumerate(buckets):
            if payload:
                staged.write(torch.frombuffer(bytearray(payload), dtype=torch.uint8), rank, bucket)
    return dict(staged.named_tensors())


@pytest.mark.parametrize(("ranks", "settings"), [(1, {}), (2, {}), (1, LORA)])
def test_rollout_servers_and_exports_get_buffers_as_the_checkpoint_has_them(
    rank_groups: Any,
    folder: Path,
    make_batch: Callable[..., Any],
    make_start: Callable[..., Any],
    tmp_path: Path,
    ranks: int,
    settings: dict[str, Any],
) -> None:
    group, start, stored = rank_groups[ranks], make_start(), load_file(folder / FILE)
    described = group.load(folder, dtype="bfloat16", bucket_mb=0.004, **settings)
    group.call("start_run", start, 0)
    first = received(described, group.call("snapshot_bytes", 0))
    assert first.keys() == stored.keys()
    for name, one in stored.items():
        assert torch.equal(first[name], one if name == NAME else one.bfloat16()), name
    assert not torch.equal(stored[NAME], stored[NAME].bfloat16().float())
    group.call("train", make_batch(1, vocabulary=61), 0, 1)
    group.call("save", 1)
    sent = received(described, group.call("snapshot_bytes", 1))
    assert any(not torch.equal(sent[name], first[name]) for name in sent)
    assert torch.equal(sent[NAME], stored[NAME])
    export(Path(start.checkpoint_dir), tmp_path / "exported")
    exported = load_file(tmp_path / "exported" / FILE)
    assert exported.keys() == sent.keys()
    for name, one in sent.items():
        assert exported[name].dtype == one.dtype
        assert torch.equal(exported[name], one), name


def test_buffers_lie_in_the_bucket_of_their_module(rank_groups: Any, folder: Path) -> None:
    described = rank_groups[1].load(folder, dtype="bfloat16", bucket_mb=1e-6)
    held = [
        {one.name for one in described.tensors[first:last]} for first, last in described.buckets
    ]
    (together,) = [names for names in held if NAME in names]
    assert together == {NAME, NAME.replace(SIGMOID, "weight")}
    assert [one.name for one in described.tensors if one.is_buffer] == [NAME]


def test_a_model_whose_buffers_cannot_be_sent_is_refused_before_it_is_loaded() -> None:
    model = nn.Sequential(nn.Linear(2, 2, device="meta"))
    model[0].register_buffer("scale", torch.empty(2, dtype=torch.float64, device="meta"))
    with pytest.raises(InvalidInput, match=r"trainer\.model.*buffer 0\.scale is float64"):
        refuse_unsendable(model, TrainerConfig(model="mine"))
    adapter = {"rank": 4, "alpha": 8, "push": "adapter"}
    refuse_unsendable(model, TrainerConfig(model="mine", lora=adapter))
