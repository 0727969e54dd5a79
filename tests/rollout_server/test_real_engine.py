"""Staged delivery into a real vLLM engine, judged by a Hugging Face forward."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch
from transformers import PreTrainedModel

from services.protocol.weights import Canary, WeightManifest
from services.rollout_server.canary import CanaryProver
from services.rollout_server.config import RolloutServerConfig
from services.rollout_server.engine_environment import environment
from services.rollout_server.engine_loader import EngineLoader, StageFailed

from .conftest import HOST, Fault, Sender, build_model, policy

pytestmark = pytest.mark.asyncio(loop_scope="module")

PROMPT = [40, 50, 60, 70, 80]
TOLERANCE = 1e-5
PIECE = 16
"""Tokens that the engine prefills in one step."""


class Served:
    """An engine, its loader, and the policies that were pushed to it by version."""

    def __init__(self, engine: Any, folder: Path) -> None:
        self.engine = engine
        self.folder = folder
        self.loader = EngineLoader(engine, host=HOST, in_flight="keep", commit_timeout_s=30)
        self.policies: dict[str, PreTrainedModel] = {}
        self.next_version = 0

    async def push(self, sender: Sender, *, seed: int) -> int:
        version = await self.stage(sender, seed=seed)
        await self.loader.commit(version)
        return version

    async def stage(self, sender: Sender, *, seed: int, fault: Fault | None = None) -> int:
        version, self.next_version = self.next_version, self.next_version + 1
        model = policy(self.folder, seed)
        self.policies[str(version)] = model
        order, payloads = sender.order(dict(model.named_parameters()), version, f"e{version}")
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
            reference = _logprobs(self.policies[version], answer.tokens)[start:end]
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


def _logprobs(model: PreTrainedModel, tokens: list[int]) -> torch.Tensor:
    with torch.no_grad():
        logits = model(torch.tensor([PROMPT + tokens])).logits[0, len(PROMPT) - 1 : -1]
    return logits.log_softmax(-1).gather(-1, torch.tensor(tokens)[:, None])[:, 0]


@pytest_asyncio.fixture(loop_scope="module", scope="module", params=["tied", "untied"])
async def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Served]:
    folder = build_model(tmp_path_factory.mktemp("model"), tied=request.param == "tied")
    config = RolloutServerConfig(
        model=str(folder),
        max_model_len=1024,
        max_num_seqs=8,
        kv_cache_gb=0.05,
        # Small, so that prompts and what a commit makes recompute are prefilled in pieces.
        engine_args={"max_num_batched_tokens": PIECE},
    )
    os.environ.update(environment(config))
    from vllm.v1.engine.async_llm import AsyncLLM

    from services.rollout_server.engine_arguments import engine_arguments, server_arguments
    from services.rollout_server.version_spans import put_spans_on_every_output

    put_spans_on_every_output()
    engine = AsyncLLM.from_engine_args(engine_arguments(server_arguments(config)))
    yield Served(engine, folder)
    engine.shutdown()


async def test_each_token_has_the_logprob_of_the_version_it_is_labelled_with_across_a_commit(
    served: Served, sender: Sender
) -> None:
    first = await served.push(sender, seed=1)
    answer = Answer()
    second: asyncio.Task[int] | None = None
    async for chunk in served.answer(400, "across"):
        answer.add(chunk)
        if second is None and len(answer.tokens) >= 40:
            second = asyncio.create_task(served.push(sender, seed=2))
    assert second is not None
    assert [version for version, _, _ in answer.spans] == [str(first), str(await second)]
    assert served.worst_difference(answer) < TOLERANCE


async def test_the_canary_proves_the_weights_that_are_served_and_no_others(
    served: Served, sender: Sender
) -> None:
    prover = CanaryProver(served.engine, timeout_s=30)
    first = await served.push(sender, seed=1)
    right = await prover.prove(with_canary(first, served.policies[str(first)]))
    assert right.gap is not None
    assert right.gap < TOLERANCE
    second = await served.push(sender, seed=2)
    stale = await prover.prove(with_canary(second, served.policies[str(first)]))
    assert stale.gap is not None
    assert stale.gap > 100 * TOLERANCE, "other weights passed for the right ones"
    assert not stale.unmoved
    again = await prover.prove(with_canary(second + 1, served.policies[str(second)]))
    assert again.unmoved, "nothing was delivered in between"


def with_canary(version: int, model: PreTrainedModel) -> WeightManifest:
    """A manifest that asks for what `model` answers."""
    sequences = ((40, 50, 60, 70), (80, 41))
    scored = []
    for one in sequences:
        ids = torch.tensor([one])
        with torch.no_grad():
            logprobs = model(input_ids=ids).logits[0, :-1].log_softmax(-1)
        scored.append(tuple(logprobs.gather(-1, ids[0, 1:, None])[:, 0].tolist()))
    return WeightManifest(
        version=version,
        train_step=version,
        tensors=(),
        buckets=(),
        digests=((str(version),),),
        canary=Canary(sequences=sequences, logprobs=tuple(scored)),
    )


async def test_a_seeded_request_that_is_prefilled_in_pieces_does_not_end_the_engine(
    served: Served, sender: Sender
) -> None:
    version = await served.push(sender, seed=8)
    prompt = [40 + index % 200 for index in range(3 * PIECE + 5)]
    answer = Answer()
    async for chunk in served.answer(10, "pieces", prompt):
        answer.add(chunk)
    assert answer.spans == [(str(version), 0, 10)]
    await served.engine.check_health()


async def test_a_seeded_request_that_a_commit_makes_recompute_does_not_end_the_engine(
    served: Served, sender: Sender
) -> None:
    await served.push(sender, seed=9)
    staged = await served.stage(sender, seed=10)
    answer = Answer()
    commit: asyncio.Task[float] | None = None
    async for chunk in served.answer(300, "recomputed"):
        answer.add(chunk)
        # More than one piece has to be recomputed.
        if commit is None and len(answer.tokens) > 3 * PIECE:
            commit = asyncio.create_task(served.loader.commit(staged))
    assert commit is not None
    await commit
    assert answer.spans[-1] == (str(staged), answer.spans[-1][1], 300)
    assert answer.spans[-1][1] > 3 * PIECE
    await served.engine.check_health()


async def test_a_failed_stage_leaves_the_served_version_bit_exact(
    served: Served, sender: Sender
) -> None:
    version = await served.push(sender, seed=3)
    before = await _whole(served, 40, "before")
    with pytest.raises(StageFailed, match="digest of bucket 1"):
        await served.stage(sender, seed=4, fault=Fault(corrupt_bucket=1))
    with pytest.raises(Exception, match="is not staged"):
        await served.loader.commit(version + 1)
    after = await _whole(served, 40, "after")
    assert not served.loader.torn
    assert served.loader.committed_version == version
    assert after.spans == before.spans == [(str(version), 0, 40)]
    assert after.logprobs == before.logprobs
    assert served.worst_difference(after) < TOLERANCE


async def test_a_commit_that_fails_half_way_serves_nothing_until_a_whole_version_is_committed(
    served: Served, sender: Sender
) -> None:
    await served.push(sender, seed=5)
    version, served.next_version = served.next_version, served.next_version + 2
    tensors = dict(policy(served.folder, 6).named_parameters())
    tensors["model.no_such_parameter"] = torch.zeros(4)
    order, payloads = sender.order(tensors, version, "torn")
    sender.send(order, payloads)
    await served.loader.stage(order)
    with pytest.raises(Exception, match="no_such_parameter"):
        await served.loader.commit(version)
    assert served.loader.torn
    assert served.loader.committed_version is None

    waiting = asyncio.create_task(_whole(served, 20, "waiting"))
    done, _ = await asyncio.wait({waiting}, timeout=0.5)
    assert not done, "a torn replica served a request"
    whole = await served.push(sender, seed=7)
    answer = await waiting
    assert answer.spans == [(str(whole), 0, 20)]
    assert served.worst_difference(answer) < TOLERANCE


async def _whole(served: Served, tokens: int, request_id: str) -> Answer:
    answer = Answer()
    async for chunk in served.answer(tokens, request_id):
        answer.add(chunk)
    return answer
