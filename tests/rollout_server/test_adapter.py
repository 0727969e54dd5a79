"""A LoRA adapter delivered into a real vLLM engine, judged by the merged Hugging Face model."""

import asyncio
import copy
import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio
import torch
from transformers import PreTrainedModel

from services.protocol.errors import InvalidInput
from services.protocol.weights.weight_bus import SendWeights
from services.protocol.weights.weights import Adapter
from services.rollout_server.config import RolloutServerConfig
from services.rollout_server.engine.adapter_requests import AdapterRequests
from services.rollout_server.engine.engine_arguments import server_arguments
from services.rollout_server.engine.vllm_patches.loading import adapter_load
from services.rollout_server.preflight import check_model
from services.rollout_server.weights.canary import CanaryProver
from services.rollout_server.weights.engine_loader import EngineLoader, OtherModel
from services.transport.base_digest import base_digest
from services.transport.receiver import VersionReceiver
from services.transport.shared_memory import SharedBuffer
from services.transport.staged_version import StagedVersion, StageFailed
from services.transport.version_bytes import block_bytes
from services.weight_bus.delivery.canary_gaps import Gaps
from tests.transport.test_staged_version import open_link

from .conftest import HOST, Fault, Sender, build_model, policy
from .served import Answer, Served, checkpoint_tensors, serve, whole
from .test_real_engine import TOLERANCE, scores_of, with_canary

RANK, ALPHA = 5, 12.0
TARGETS = ("q_proj", "v_proj", "o_proj", "up_proj", "down_proj")
"""Not all: vLLM merges q, k, v and gate, up, and must take a part as well."""


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def adapted(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator["Adapted"]:
    folder = build_model(tmp_path_factory.mktemp("base"))
    policy(folder, seed=100).save_pretrained(folder)
    async with serve(folder, lora_rank=RANK, keep_copy=True) as served:
        yield Adapted(served)


class Adapted:
    """An engine that takes adapters, and the merged models that it should then be."""

    def __init__(self, served: Served) -> None:
        self.served, self.base = served, base_digest(str(served.folder))
        requests = AdapterRequests(served.engine, name="policy", base=self.base)
        served.loader = EngineLoader(
            served.engine,
            VersionReceiver(HOST, keeps_copy=True),
            in_flight="keep",
            commit_timeout_s=300,
            adapter=requests,
        )

    def make(self, seed: int) -> tuple[PreTrainedModel, dict[str, torch.Tensor]]:
        """The merged model, and the adapter in the PEFT format."""
        model = policy(self.served.folder, seed=100)
        draw = torch.Generator().manual_seed(seed)
        tensors = {}
        for name, layer in list(model.named_modules()):
            if name.rpartition(".")[2] not in TARGETS:
                continue
            a = 0.1 * torch.randn(RANK, layer.in_features, generator=draw)
            b = 0.1 * torch.randn(layer.out_features, RANK, generator=draw)
            tensors[f"base_model.model.{name}.lora_A.weight"] = a
            tensors[f"base_model.model.{name}.lora_B.weight"] = b
            with torch.no_grad():
                layer.weight += ALPHA / RANK * b @ a
        return model, tensors

    async def stage(self, sender: Sender, seed: int, **changed: Any) -> int:
        model, tensors = self.make(seed)
        served = self.served
        version, served.next_version = served.next_version, served.next_version + 1
        served.policies[str(version)] = model
        adapter = Adapter(rank=RANK, alpha=ALPHA, base=changed.get("base", self.base))
        if rename := changed.get("rename"):
            tensors = {name.replace(*rename): one for name, one in tensors.items()}
        order, payloads = sender.order(tensors, version, f"a{version}", adapter=adapter)
        if not changed.get("refused"):  # else nobody would come to the links
            sender.send(order, payloads, changed.get("fault"))
        await served.loader.stage(order)
        return version

    async def push(self, sender: Sender, seed: int) -> int:
        version = await self.stage(sender, seed)
        await self.served.loader.commit(version)
        return version


@pytest.mark.asyncio(loop_scope="module")
async def test_each_token_has_the_logprob_of_the_merged_model_it_is_labelled_with(
    adapted: Adapted, sender: Sender
) -> None:
    first = await adapted.push(sender, seed=1)
    answer = Answer()
    second: asyncio.Task[int] | None = None
    async for chunk in adapted.served.answer(300, "across"):
        answer.add(chunk)
        if second is None and len(answer.tokens) >= 40:
            second = asyncio.create_task(adapted.push(sender, seed=2))
    assert second is not None
    assert [version for version, _, _ in answer.spans] == [str(first), str(await second)]
    assert adapted.served.worst_difference(answer) < TOLERANCE


@pytest.mark.asyncio(loop_scope="module")
async def test_the_canary_is_scored_with_the_adapter(adapted: Adapted, sender: Sender) -> None:
    prover = CanaryProver(adapted.served.engine, timeout_s=300)
    for seed in (3, 4):
        version = await adapted.push(sender, seed)
        proof = await prover.prove(with_canary(version))
        assert proof.logprobs is not None
        assert not proof.unmoved
        expected = scores_of(adapted.served.policies[str(version)])
        assert Gaps.between(proof.logprobs, expected).largest < TOLERANCE


@pytest.mark.asyncio(loop_scope="module")
async def test_a_late_joiner_gets_the_adapter_from_a_peer_as_the_trainer_sent_it(
    adapted: Adapted, sender: Sender
) -> None:
    """vLLM has scaled what it serves; the copy beside it is what goes on."""
    await adapted.push(sender, seed=7)
    version = await adapted.push(sender, seed=8)
    _, tensors = adapted.make(seed=8)
    held = adapted.served.loader.copy
    assert held is not None
    assert held.adapter == Adapter(rank=RANK, alpha=ALPHA, base=adapted.base)
    links = tuple(sender.link(rank, "peer") for rank in range(sender.world_size))
    joiner = StagedVersion(held, SharedBuffer(block_bytes(held)))
    joining = joiner.receive(links, open_link)
    receiver = adapted.served.loader.receiver
    sends = [receiver.send(SendWeights(version=version, link=link)) for link in links]
    assert sum(await asyncio.gather(*sends)) == held.total_bytes
    await asyncio.wrap_future(joining)
    got = dict(joiner.bytes.named_tensors())
    assert got.keys() == tensors.keys()
    assert all(torch.equal(got[name], one) for name, one in tensors.items())


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"fault": Fault(corrupt_bucket=1)}, "digest of bucket 1"),
        ({"refused": True, "base": "0" * 64}, "base: the adapter is for weights with digest 000"),
        ({"refused": True, "rename": ("o_proj", "x_proj")}, "o_proj.lora_A.weight is missing"),
    ],
)
async def test_an_adapter_that_cannot_be_staged_leaves_the_one_before_serving(
    adapted: Adapted, sender: Sender, changed: dict[str, Any], problem: str
) -> None:
    served = adapted.served
    version = await adapted.push(sender, seed=5)
    before = await whole(served, 20, f"before {problem}")
    with pytest.raises(StageFailed, match=problem):
        await adapted.stage(sender, seed=6, **changed)
    sender.errors.clear()
    after = await whole(served, 20, f"after {problem}")
    assert after.spans == before.spans == [(str(version), 0, 20)]
    assert after.logprobs == before.logprobs
    assert served.worst_difference(after) < TOLERANCE


@pytest.mark.asyncio(loop_scope="module")
async def test_an_adapter_for_layers_that_the_engine_lacks_is_never_half_loaded(
    adapted: Adapted, sender: Sender
) -> None:
    served = adapted.served
    version = await adapted.push(sender, seed=5)
    before = await whole(served, 20, "before unknown")
    served.loader._loaded = None  # as on a replica that has not served anything yet
    other = await adapted.stage(sender, seed=6, rename=("o_proj", "x_proj"))
    with pytest.raises(Exception, match=r"can adapt no layer model.layers.0.self_attn.x_proj"):
        await served.loader.commit(other)
    assert not served.loader.torn
    assert served.loader.committed_version == version
    after = await whole(served, 20, "after unknown")
    assert after.logprobs == before.logprobs


@pytest.mark.asyncio(loop_scope="module")
async def test_a_whole_model_is_refused_where_adapters_are_served(
    adapted: Adapted, sender: Sender
) -> None:
    tensors = checkpoint_tensors(policy(adapted.served.folder, 1))
    order, _ = sender.order(tensors, 1000, "whole")
    with pytest.raises(OtherModel, match="a model came where adapters are served"):
        await adapted.served.loader.stage(order)


async def test_an_adapter_is_refused_where_whole_models_are_served(sender: Sender) -> None:
    adapter = Adapter(rank=2, alpha=4.0, base="")
    order, _ = sender.order({"x.lora_A.weight": torch.zeros(2, 4)}, 0, "a", adapter=adapter)
    receiver = VersionReceiver(HOST)
    loader = EngineLoader(SimpleNamespace(), receiver, in_flight="keep", commit_timeout_s=1)
    with pytest.raises(OtherModel, match=r"an adapter came.*rollout_server.lora_rank"):
        await loader.stage(order)


def fake_engine_model(room: int = 8) -> Any:
    """What of an adapted vLLM model `prepare` looks at."""
    config = SimpleNamespace(max_lora_rank=room, lora_dtype=torch.float32)
    packed = {"m.qkv_proj": ["m.q_proj", "m.k_proj"]}
    manager = SimpleNamespace(lora_config=config, packed_modules=packed, modules=["m.qkv_proj"])
    return SimpleNamespace(lora_manager=manager)


def test_what_was_received_stays_as_it_was_when_vllm_scales_the_adapter() -> None:
    tensors = {
        "base_model.model.m.q_proj.lora_A.weight": torch.ones(2, 4),
        "base_model.model.m.q_proj.lora_B.weight": torch.ones(6, 2),
    }
    received = copy.deepcopy(tensors)
    adapter = Adapter(rank=2, alpha=6.0, base="")
    loaded = adapter_load.prepare(fake_engine_model(), adapter, iter(tensors.items()))
    (layer,) = loaded.loras.values()
    layer.optimize()
    assert layer.lora_b.max() == 3.0, "vLLM scales in another way now"
    assert all(torch.equal(tensors[name], one) for name, one in received.items())


def test_a_rank_above_the_engines_room_is_refused() -> None:
    adapter = Adapter(rank=9, alpha=6.0, base="")
    with pytest.raises(ValueError, match="rank 9: the engine takes adapters up to rank 8"):
        adapter_load.prepare(fake_engine_model(), adapter, iter(()))


async def test_a_request_before_the_first_adapter_is_the_frozen_models() -> None:
    class Engine:
        async def add_request(self, *args: Any, **kwargs: Any) -> Any:
            return kwargs.get("lora_request")

    engine = Engine()
    requests = AdapterRequests(engine, name="policy", base="")
    assert await engine.add_request("id", lora_request=None) is None
    requests.there = True
    assert (await engine.add_request("id", lora_request=None)).lora_name == "policy"


@pytest.mark.parametrize(("rank", "room"), [(1, 1), (5, 8), (33, 64), (512, 512)])
def test_an_engine_gets_the_least_room_that_vllm_offers_for_a_rank(tmp_path, rank, room) -> None:
    config = RolloutServerConfig(model=str(tmp_path), lora_rank=rank)
    arguments = server_arguments(config)
    assert (arguments.enable_lora, arguments.max_lora_rank) == (True, room)
    assert arguments.load_format == "auto"


def test_a_folder_without_weights_cannot_be_adapted(tmp_path) -> None:
    build_model(tmp_path)
    check_model(RolloutServerConfig(model=str(tmp_path), max_model_len=64))
    with pytest.raises(InvalidInput, match="safetensors"):
        check_model(RolloutServerConfig(model=str(tmp_path), max_model_len=64, lora_rank=4))
    with pytest.raises(InvalidInput, match="safetensors"):
        base_digest(str(tmp_path))


def test_the_digest_of_a_base_is_of_every_byte_of_its_weights(tmp_path) -> None:
    build_model(tmp_path)
    (tmp_path / "model-1.safetensors").write_bytes(b"first")
    (tmp_path / "model-2.safetensors").write_bytes(b"second")
    whole_digest = base_digest(str(tmp_path))
    assert base_digest(str(tmp_path)) == whole_digest
    (tmp_path / "model-2.safetensors").write_bytes(b"Second")
    assert base_digest(str(tmp_path)) != whole_digest


def test_weights_in_another_layout_beside_those_of_the_index_are_not_digested(tmp_path) -> None:
    build_model(tmp_path)
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "model-1.safetensors").write_bytes(b"first")
    with pytest.raises(InvalidInput, match="safetensors"):
        base_digest(str(tmp_path))
    (tmp_path / "model-2.safetensors").write_bytes(b"second")
    alone = base_digest(str(tmp_path))
    (tmp_path / "consolidated.safetensors").write_bytes(b"both")
    assert base_digest(str(tmp_path)) == alone
