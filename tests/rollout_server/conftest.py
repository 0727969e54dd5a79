"""Models small enough to build on the fly, and a sender that speaks the real wire format."""

import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch.distributed import (  # type: ignore[attr-defined]
    BroadcastOptions,
    PrefixStore,
    ProcessGroupGloo,
    TCPStore,
)
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
)

from services.protocol.weights.weight_bus import Link, StageWeights
from services.protocol.weights.weights import (
    Adapter,
    Dtype,
    TensorSpec,
    WeightManifest,
    plan_buckets,
)
from services.transport.bucket import MAGIC, NO_BASE, Kind, digest

HOST = "127.0.0.1"
LINK_TIMEOUT_S = 120.0


@pytest.fixture(scope="session", autouse=True)
def _sockets() -> Iterator[None]:
    """Engines leave their sockets behind; a socket's path must be short."""
    with (
        tempfile.TemporaryDirectory(prefix="vllm-") as folder,
        pytest.MonkeyPatch.context() as set_,
    ):
        set_.setenv("VLLM_RPC_BASE_PATH", folder)
        yield


@dataclass
class Fault:
    """What a sender does wrong."""

    corrupt_bucket: int | None = None
    announce_version: int | None = None
    die_before_bucket: int | None = None


@dataclass
class Sender:
    """Trainer ranks as threads: shards of a state dict over real Gloo links."""

    store: TCPStore
    world_size: int = 2
    workers: int = 1
    threads: list[threading.Thread] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)
    groups: dict[str, ProcessGroupGloo] = field(default_factory=dict)

    def order(
        self,
        tensors: dict[str, torch.Tensor],
        version: int,
        epoch: str,
        target_bytes: int = 16384,
        adapter: Adapter | None = None,
    ) -> tuple[StageWeights, list[list[torch.Tensor]]]:
        """The order a bus would give, and each rank's payload per bucket."""
        specs, shards = [], []
        for name, tensor in tensors.items():
            pieces = _shards(tensor, self.world_size)
            shards.append(pieces)
            specs.append(
                TensorSpec(
                    name=name,
                    dtype=Dtype(str(tensor.dtype).removeprefix("torch.")),
                    shape=tuple(tensor.shape),
                    shard_numels=tuple(piece.numel() for piece in pieces),
                )
            )
        buckets = plan_buckets(tuple(specs), target_bytes)
        payloads = [
            [_bytes([pieces[rank] for pieces in shards[first:last]]) for first, last in buckets]
            for rank in range(self.world_size)
        ]
        manifest = WeightManifest(
            version=version,
            train_step=version,
            tensors=tuple(specs),
            buckets=buckets,
            digests=tuple(tuple(digest([p]) for p in rank) for rank in payloads),
            adapter=adapter,
        )
        links = tuple(self.link(rank, epoch) for rank in range(self.world_size))
        return StageWeights(manifest=manifest, links=links), payloads

    def link(self, rank: int, epoch: str) -> Link:
        return Link(
            replica_id="r0",
            trainer_rank=rank,
            store_host=HOST,
            store_port=self.store.port,
            prefix=f"{epoch}/t{rank}",
            world_size=1 + self.workers,
            timeout_s=LINK_TIMEOUT_S,
        )

    def send(
        self,
        order: StageWeights,
        payloads: list[list[torch.Tensor]],
        fault: Fault | None = None,
        before_bucket: Callable[[int], None] = lambda bucket: None,
    ) -> None:
        """Start one thread per rank; only rank 0 misbehaves."""
        for link in order.links:
            wrong = fault if fault and link.trainer_rank == 0 else Fault()
            thread = threading.Thread(
                target=self._run,
                args=(order, link, payloads[link.trainer_rank], wrong, before_bucket),
            )
            thread.start()
            self.threads.append(thread)

    def join(self) -> None:
        for thread in self.threads:
            thread.join(LINK_TIMEOUT_S * 2)
            assert not thread.is_alive()
        self.threads.clear()

    def _run(
        self,
        order: StageWeights,
        link: Link,
        payloads: list[torch.Tensor],
        fault: Fault,
        before_bucket: Callable[[int], None],
    ) -> None:
        try:
            self._send(order, link, payloads, fault, before_bucket)
        except RuntimeError as error:
            self.groups.pop(link.prefix, None)
            self.errors.append(error)

    def _send(
        self,
        order: StageWeights,
        link: Link,
        payloads: list[torch.Tensor],
        fault: Fault,
        before_bucket: Callable[[int], None],
    ) -> None:
        group = self.groups.get(link.prefix) or self._open(link)
        version = order.manifest.version
        if fault.announce_version is not None:
            version = fault.announce_version
        for bucket, payload in enumerate(payloads):
            before_bucket(bucket)
            if fault.die_before_bucket == bucket:
                self.groups.pop(link.prefix)
                return
            header = torch.tensor(
                [MAGIC, version, bucket, Kind.FULL, NO_BASE, payload.numel(), 0, 0, 0, 0]
            )
            _broadcast(group, header)
            if payload.numel():
                wrong = payload.clone()
                if fault.corrupt_bucket == bucket:
                    wrong[0] ^= 1
                _broadcast(group, wrong)

    def _open(self, link: Link) -> ProcessGroupGloo:
        group = ProcessGroupGloo(
            PrefixStore(link.prefix, self.store),
            0,
            link.world_size,
            timedelta(seconds=link.timeout_s),
        )
        self.groups[link.prefix] = group
        return group


def _broadcast(group: ProcessGroupGloo, tensor: torch.Tensor) -> None:
    options = BroadcastOptions()
    options.rootRank = 0
    options.rootTensor = 0
    group.broadcast([tensor], options).wait()  # type: ignore[attr-defined]


def _shards(tensor: torch.Tensor, world_size: int) -> list[torch.Tensor]:
    """Dim-0 chunks as FSDP2 makes them; a rank beyond the last chunk holds nothing."""
    chunks = list(tensor.detach().chunk(world_size))
    empty = tensor.detach()[:0]
    return [*chunks, *[empty] * (world_size - len(chunks))]


def _bytes(pieces: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([piece.reshape(-1).contiguous().view(torch.uint8) for piece in pieces])


@pytest.fixture
def sender() -> Iterator[Sender]:
    store = TCPStore(
        HOST, 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=LINK_TIMEOUT_S)
    )
    sender = Sender(store)
    yield sender
    sender.join()
    sender.groups.clear()


SMALL = {
    "vocab_size": 272,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 1024,
    "eos_token_id": 1,
    "pad_token_id": 0,
}


def build_model(
    folder: Path, *, tied: bool = False, config: Any = None, more_tokens: tuple[str, ...] = ()
) -> Path:
    """A two-layer model, by default a Qwen3, and a byte tokenizer with a chat template."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {
        token: index for index, token in enumerate(["<pad>", "<eos>", *alphabet, *more_tokens])
    }
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<eos>", pad_token="<pad>")
    fast.add_special_tokens({"additional_special_tokens": list(more_tokens)})
    fast.chat_template = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    fast.save_pretrained(folder)
    config = config or Qwen3Config(**SMALL, head_dim=32, tie_word_embeddings=tied)
    config.architectures = [type(AutoModelForCausalLM.from_config(config)).__name__]
    config.save_pretrained(folder)
    return folder


def policy(folder: Path, seed: int, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """The model of `folder` with weights of its own; versions differ strongly."""
    torch.manual_seed(seed)
    config = AutoConfig.from_pretrained(folder)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    return model


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def app(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Any]:
    """vLLM's application as a replica serves it, for every test that only asks it."""
    from .http_served import serve_http

    folder = build_model(
        tmp_path_factory.mktemp("app"), more_tokens=("<think>", "</think>", *TOOL_TOKENS)
    )
    store = TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    arguments = {
        "enable_auto_tool_choice": True,
        "tool_call_parser": "hermes",
        "reasoning_parser": "deepseek_v3",
        # A model of random weights would fill its answer with blanks.
        "structured_outputs_config": {
            "backend": "xgrammar",
            "disable_any_whitespace": True,
            "enable_in_reasoning": True,
            "reasoning_parser": "deepseek_v3",
        },
    }
    async with serve_http(folder, engine_args=arguments) as one:
        sender = Sender(store)
        await one.served.push(sender, seed=1)
        sender.join()
        sender.groups.clear()
        yield one


TOOL_TOKENS = ("<tool_call>", "</tool_call>")
