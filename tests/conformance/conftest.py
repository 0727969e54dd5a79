"""A router before a real engine, for clients that know nothing of either.

Every test ends with nothing left in flight: a client that goes takes its work along.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from services.protocol.weights.weight_bus import Member, ReplicaState
from tests.router.conftest import Cluster
from tests.router.vllm_process import MODEL, Urls


async def before(
    url: str, *, model: str = MODEL, max_model_len: int = 512, **config: Any
) -> Cluster:
    """A router whose one replica is vLLM's application at this address."""
    cluster = Cluster()
    await cluster.start(replicas=0, **config)
    member = Member(
        replica_id="only",
        address=url,
        state=ReplicaState.LIVE,
        committed_version=3,
        leased=True,
        model=model,
        max_model_len=max_model_len,
        pid=1,
    )
    await cluster.bus.put(member)
    await cluster.until_leased("only")
    return cluster


async def until_busy(cluster: Cluster) -> None:
    """A reservation is taken."""
    await _until(lambda: cluster.reservations.chooser.counts)


async def until_idle(cluster: Cluster) -> None:
    """No reservation is taken any more."""
    await _until(lambda: not cluster.reservations.chooser.counts)


async def _until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(300):
        while not true():  # noqa: ASYNC110  (the router announces it to nobody)
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def _routed(url: str) -> AsyncIterator[Cluster]:
    cluster = await before(url)
    yield cluster
    await until_idle(cluster)
    await cluster.close()


@pytest.fixture
async def router(vllm: Urls) -> AsyncIterator[Cluster]:
    """Before vLLM's application without parsers: what the model says is the answer."""
    async with _routed(vllm.plain) as cluster:
        yield cluster


@pytest.fixture
async def parsing(vllm: Urls) -> AsyncIterator[Cluster]:
    """Before the one with a tool parser and a reasoning parser."""
    async with _routed(vllm.parsing) as cluster:
        yield cluster


@pytest.fixture
async def calling(vllm: Urls) -> AsyncIterator[Cluster]:
    """Before the one with a tool parser only."""
    async with _routed(vllm.tools) as cluster:
        yield cluster
