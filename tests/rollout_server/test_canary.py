"""The engine's side of a delivery's proof, with an engine whose logprobs the test chooses."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from services.protocol.weights.weights import WeightManifest
from services.rollout_server.weights.canary import CanaryProver

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


def manifest(version: int) -> WeightManifest:
    return WeightManifest(
        version=version,
        train_step=version,
        tensors=(),
        buckets=(),
        digests=((str(version),),),
        canary=SEQUENCES,
    )


async def test_every_token_but_the_first_of_each_sequence_is_scored() -> None:
    prover = CanaryProver(Engine(), timeout_s=5)
    assert (await prover.prove(manifest(1))).logprobs == ((-6.0, -7.0), (-9.0,))


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
