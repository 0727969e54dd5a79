"""Staged delivery into a real vLLM engine, judged by a Hugging Face forward."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
import pytest_asyncio
import torch
from transformers import LlamaConfig, PreTrainedModel

from services.protocol.weights.weights import CanaryLogprobs, WeightManifest
from services.rollout_server.weights.canary import CanaryProver
from services.rollout_server.weights.engine_loader import EngineLoader, OtherModel
from services.transport.receiver import VersionReceiver
from services.transport.staged_version import StageFailed
from services.weight_bus.delivery.canary_gaps import Gaps

from .conftest import HOST, SMALL, Fault, Sender, build_model, policy
from .served import Answer, Served, checkpoint_tensors, serve, whole

pytestmark = pytest.mark.asyncio(loop_scope="module")

TOLERANCE = 1e-5
PIECE = 16
"""Tokens that the engine prefills in one step."""


MODELS = {
    "a tied Qwen3": {"tied": True},
    "an untied Llama": {"config": LlamaConfig(**SMALL, head_dim=32)},
}


@pytest_asyncio.fixture(loop_scope="module", scope="module", params=MODELS)
async def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Served]:
    folder = build_model(tmp_path_factory.mktemp("model"), **MODELS[request.param])
    # Small, so that prompts and what a commit makes recompute are prefilled in pieces.
    async with serve(folder, engine_args={"max_num_batched_tokens": PIECE}) as served:
        yield served


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
    prover = CanaryProver(served.engine, timeout_s=300)
    first = await served.push(sender, seed=1)
    right = await prover.prove(with_canary(first))
    expected = scores_of(served.policies[str(first)])
    assert right.logprobs is not None
    assert Gaps.between(right.logprobs, expected).largest < TOLERANCE
    second = await served.push(sender, seed=2)
    newer = await prover.prove(with_canary(second))
    assert newer.logprobs is not None
    assert Gaps.between(newer.logprobs, expected).largest > 100 * TOLERANCE, "other weights passed"
    assert not newer.unmoved
    again = await prover.prove(with_canary(second + 1))
    assert again.unmoved, "nothing was delivered in between"


SEQUENCES = ((40, 50, 60, 70), (80, 41))


def scores_of(model: PreTrainedModel) -> CanaryLogprobs:
    """What `model` answers to the canary."""
    scored = []
    for one in SEQUENCES:
        ids = torch.tensor([one])
        with torch.no_grad():
            logprobs = model(input_ids=ids).logits[0, :-1].log_softmax(-1)
        scored.append(tuple(logprobs.gather(-1, ids[0, 1:, None])[:, 0].tolist()))
    return tuple(scored)


def with_canary(version: int) -> WeightManifest:
    """A manifest that asks for the sequences."""
    return WeightManifest(
        version=version,
        train_step=version,
        tensors=(),
        buckets=(),
        digests=((str(version),),),
        canary=SEQUENCES,
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
    before = await whole(served, 40, "before")
    with pytest.raises(StageFailed, match="digest of bucket 1"):
        await served.stage(sender, seed=4, fault=Fault(corrupt_bucket=1))
    with pytest.raises(Exception, match="is not staged"):
        await served.loader.commit(version + 1)
    after = await whole(served, 40, "after")
    assert not served.loader.torn
    assert served.loader.committed_version == version
    assert after.spans == before.spans == [(str(version), 0, 40)]
    assert after.logprobs == before.logprobs
    assert served.worst_difference(after) < TOLERANCE


@pytest.mark.parametrize(
    ("name", "tensor", "problem"),
    [
        ("model.extra.weight", torch.zeros(4), "model.extra.weight is not in the model"),
        ("model.norm.weight", torch.zeros(32), r"model.norm.weight is \[32\] float32, but \[64\]"),
        ("model.norm.weight", torch.zeros(64, dtype=torch.bfloat16), "64. bfloat16, but"),
        ("model.norm.weight", None, "model.norm.weight is missing"),
    ],
)
async def test_weights_of_another_model_are_refused_and_the_old_version_serves_on(
    served: Served, sender: Sender, name: str, tensor: torch.Tensor | None, problem: str
) -> None:
    version = await served.push(sender, seed=3)
    before = await whole(served, 20, f"before {problem}")
    tensors = checkpoint_tensors(served.policies[str(version)])
    tensors.pop(name, None)
    if tensor is not None:
        tensors[name] = tensor
    order, _ = sender.order(tensors, version + 1, f"other {version}")
    with pytest.raises(OtherModel, match=problem):
        await served.loader.stage(order)
    after = await whole(served, 20, f"after {problem}")
    assert (after.spans, after.logprobs) == (before.spans, before.logprobs)


async def test_changes_onto_a_base_that_is_not_here_are_refused_and_everything_is_taken_instead(
    served: Served, sender: Sender
) -> None:
    version = await served.push(sender, seed=3)
    before = await whole(served, 20, "before a wrong base")
    tensors = checkpoint_tensors(served.policies[str(version)])
    order, _ = sender.order(tensors, version + 1, f"base {version}")
    with pytest.raises(Exception, match=r"base: 99 -> .*of version None"):
        await served.loader.stage(replace(order, base=99))
    after = await whole(served, 20, "after a wrong base")
    assert (after.spans, after.logprobs) == (before.spans, before.logprobs)
    await served.push(sender, seed=4)


async def test_a_commit_that_fails_half_way_serves_nothing_until_a_whole_version_is_committed(
    served: Served, sender: Sender
) -> None:
    await served.push(sender, seed=5)
    version, served.next_version = served.next_version, served.next_version + 2
    # One that has loaded nothing yet takes the manifest's word for the model.
    served.loader = EngineLoader(
        served.engine, VersionReceiver(HOST), in_flight="keep", commit_timeout_s=300
    )
    tensors = dict(policy(served.folder, 6).named_parameters())
    tensors["model.no_such_parameter"] = torch.zeros(4)
    order, payloads = sender.order(tensors, version, "torn")
    sender.send(order, payloads)
    await served.loader.stage(order)
    with pytest.raises(Exception, match="no_such_parameter"):
        await served.loader.commit(version)
    assert served.loader.torn
    assert served.loader.committed_version is None

    waiting = asyncio.create_task(whole(served, 20, "waiting"))
    done, _ = await asyncio.wait({waiting}, timeout=0.5)
    assert not done, "a torn replica served a request"
    fresh = await served.push(sender, seed=7)
    answer = await waiting
    assert answer.spans == [(str(fresh), 0, 20)]
    assert served.worst_difference(answer) < TOLERANCE
