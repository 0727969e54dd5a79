"""A real engine beside the Hugging Face models whose weights were pushed to it."""

import math
import multiprocessing
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from transformers import PreTrainedModel

from services.rollout_server.config import RolloutServerConfig
from services.rollout_server.engine.engine_environment import environment
from services.rollout_server.weights.engine_loader import EngineLoader
from services.trainer.experts.names import CheckpointNames
from services.transport.receiver import VersionReceiver

from .conftest import HOST, Fault, Sender, policy

PROMPT = [40, 50, 60, 70, 80]


class Served:
    """An engine, its loader, and the policies that were pushed to it by version."""

    def __init__(self, engine: Any, folder: Path) -> None:
        self.engine = engine
        self.folder = folder
        self.loader = EngineLoader(
            engine, VersionReceiver(HOST), in_flight="keep", commit_timeout_s=300
        )
        self.policies: dict[str, PreTrainedModel] = {}
        self.next_version = 0
        self.dtype = torch.float32

    async def push(self, sender: Sender, *, seed: int) -> int:
        version = await self.stage(sender, seed=seed)
        await self.loader.commit(version)
        return version

    async def stage(self, sender: Sender, *, seed: int, fault: Fault | None = None) -> int:
        version, self.next_version = self.next_version, self.next_version + 1
        model = policy(self.folder, seed, self.dtype)
        self.policies[str(version)] = model
        order, payloads = sender.order(checkpoint_tensors(model), version, f"e{version}")
        sender.send(order, payloads, fault)
        await self.loader.stage(order)
        return version

    async def answer(
        self, tokens: int, request_id: str, prompt_ids: list[int] = PROMPT
    ) -> AsyncIterator[Any]:
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        sampling = SamplingParams(
            max_tokens=tokens,
            ignore_eos=True,
            logprobs=0,
            seed=1,
            output_kind=RequestOutputKind.DELTA,
        )
        prompt = {"prompt_token_ids": prompt_ids}
        async for output in self.engine.generate(prompt, sampling, request_id=request_id):
            yield output.outputs[0]

    def worst_difference(self, answer: "Answer") -> float:
        """Largest |served - reference| logprob, each token under its labelled version."""
        worst = 0.0
        for version, start, end in answer.spans:
            reference = reference_logprobs(self.policies[version], answer.tokens)[start:end]
            served = torch.tensor(answer.logprobs[start:end])
            worst = max(worst, (served - reference).abs().max().item())
        return worst


class Answer:
    """A streamed answer put together from its chunks."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.spans: list[tuple[str, int, int]] = []

    def add(self, chunk: Any) -> None:
        self.tokens += chunk.token_ids
        self.logprobs += [
            entry[token].logprob
            for entry, token in zip(chunk.logprobs, chunk.token_ids, strict=True)
        ]
        self.spans = [(s.version, s.start, s.end) for s in chunk.weight_versions]
        assert self.spans[-1][2] == len(self.tokens), "a chunk's spans do not cover its tokens"


def reference_logprobs(model: PreTrainedModel, tokens: list[int]) -> torch.Tensor:
    with torch.no_grad():
        logits = model(torch.tensor([PROMPT + tokens])).logits[0, len(PROMPT) - 1 : -1]
    return logits.float().log_softmax(-1).gather(-1, torch.tensor(tokens)[:, None])[:, 0]


async def whole(served: Served, tokens: int, request_id: str) -> Answer:
    answer = Answer()
    async for chunk in served.answer(tokens, request_id):
        answer.add(chunk)
    return answer


def checkpoint_tensors(model: PreTrainedModel) -> dict[str, torch.Tensor]:
    """The model's parameters under the names and in the shapes of a checkpoint."""
    names = CheckpointNames(model.config.model_type)
    tensors: dict[str, torch.Tensor] = {}
    for name, parameter in model.named_parameters():
        parts = names.parts(name, tuple(parameter.shape))
        pieces = parameter.detach().reshape(-1).split([math.prod(shape) for _, shape in parts])
        for (part, shape), piece in zip(parts, pieces, strict=True):
            tensors[part] = piece.view(shape)
    return tensors


def _forks() -> Any:
    """Engines start as forks of a process that has imported everything, as a replica's do.

    Not as forks of this process: OpenMP does not work in a fork of one that has used it.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.rollout_server.engine_forks"])
    return context


@asynccontextmanager
async def serve(folder: Path, **settings: Any) -> AsyncIterator[Served]:
    """Start an engine without weights for the model of `folder`."""
    config = RolloutServerConfig(
        model=str(folder), max_model_len=1024, max_num_seqs=8, kv_cache_gb=0.05, **settings
    )
    os.environ.update(environment(config) | {"OMP_NUM_THREADS": os.environ["OMP_NUM_THREADS"]})
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    from services.rollout_server.engine.engine_arguments import server_arguments
    from services.rollout_server.engine.vllm_patches.version_spans import put_spans_on_every_output

    put_spans_on_every_output()
    with patch("vllm.v1.engine.utils.get_mp_context", _forks):
        engine = AsyncLLM.from_engine_args(AsyncEngineArgs.from_cli_args(server_arguments(config)))
    try:
        yield Served(engine, folder)
    finally:
        engine.shutdown()
