"""The engine's side of a delivery's proof, with an engine whose logprobs the test chooses."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from services.protocol.weights import Canary, WeightManifest
from services.rollout_server.canary import CanaryProver

SEQUENCES = ((5, 6, 7), (8, 9))


class Engine:
    """Gives every token the logprob -(token + shift)."""

    def __init__(self) -> None:
        self.shift = 0.0
        self.gate = asyncio.Event()
        self.gate.set()

    async def generate(self, prompt: Any, parameters: Any, request_id: str) -> AsyncIterator[Any]:
        await self.gate.wait()
        ids = prompt["prompt_token_ids"]
        scored = [{t: SimpleNamespace(logprob=-(t + self.shift))} for t in ids]
        yield SimpleNamespace(prompt_logprobs=[None, *scored[1:]])


def manifest(version: int, shift: float = 0.0) -> WeightManifest:
    logprobs = tuple(tuple(-(token + shift) for token in one[1:]) for one in SEQUENCES)
    return WeightManifest(
        version=version,
        train_step=version,
        tensors=(),
        buckets=(),
        digests=((str(version),),),
        canary=Canary(sequences=SEQUENCES, logprobs=logprobs),
    )


async def test_the_gap_is_the_largest_difference_of_any_token() -> None:
    prover = CanaryProver(Engine(), timeout_s=5)
    assert (await prover.prove(manifest(1))).gap == 0.0
    assert (await prover.prove(manifest(2, shift=0.25))).gap == pytest.approx(0.25)


async def test_an_engine_that_answers_as_before_under_new_weights_has_not_moved() -> None:
    engine = Engine()
    prover = CanaryProver(engine, timeout_s=5)
    assert not (await prover.prove(manifest(1))).unmoved, "there was nothing before"
    assert not (await prover.prove(manifest(1))).unmoved, "the same weights again"
    assert (await prover.prove(manifest(2))).unmoved
    engine.shift = 1e-9
    assert not (await prover.prove(manifest(3))).unmoved


async def test_an_engine_that_does_not_come_to_it_ends_at_the_deadline() -> None:
    engine = Engine()
    engine.gate.clear()
    with pytest.raises(TimeoutError):
        await CanaryProver(engine, timeout_s=0.02).prove(manifest(1))
