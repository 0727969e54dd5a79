"""Real engines, a real two-rank FSDP2 trainer and a real bus, each in a process, under faults.

There is no Ray here but in `test_whole_run.py`. The parts of `millrace chaos` are tested alone in
tests/cli/chaos, its use on whole clusters in tests/operations.
"""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.chaos.answers import Client, Judge
from tests.chaos.front import Front
from tests.chaos.opening import make_model, opened
from tests.chaos.scene import Scene

TOLERANCE = 1e-5


@pytest.fixture(scope="package")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def running_scene(
    model: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Scene]:
    async with opened(model, tmp_path_factory.mktemp("weights")) as scene:
        yield scene


@pytest.fixture(scope="package")
def judge(model: Path, running_scene: Scene) -> Judge:
    return Judge(model, running_scene.weights)


@pytest_asyncio.fixture(loop_scope="session")
async def scene(running_scene: Scene, judge: Judge) -> AsyncIterator[Scene]:
    """Everything whole, with requests in flight; whatever happens, each token is judged."""
    replica_ids = await running_scene.make_whole()
    running_scene.client = client = Client()
    try:
        for replica_id in replica_ids:
            client.ask(await running_scene.member(replica_id))
        for replica_id in replica_ids:
            await client.flows(replica_id)
        yield running_scene
    finally:
        await client.stop(killed=running_scene.killed)
    for replica_id, journals in client.journals.items():
        assert client.tokens(replica_id)
        for journal in journals:
            labels = [version for version, *_ in journal.spans]
            assert labels == sorted(labels)
            assert judge.worst(journal) < TOLERANCE


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def running_front(running_scene: Scene) -> AsyncIterator[Front]:
    async with Front(running_scene).opened() as front:
        yield front


@pytest_asyncio.fixture(loop_scope="session")
async def front(running_front: Front) -> AsyncIterator[Front]:
    """Two routers before two replicas; afterwards nothing is left in flight anywhere."""
    await running_front.make_whole()
    try:
        await running_front.know_the_answers()
        yield running_front
    finally:
        await running_front.stop()
    await running_front.make_whole()
    await running_front.until_idle()
