"""Real engines, a real two-rank FSDP2 trainer and a real bus, each in processes to be killed."""

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from services.rollout_server.config import RolloutServerConfig
from services.rollout_server.engine_environment import environment
from services.trainer import rank_group
from tests.chaos.answers import Client, Judge
from tests.chaos.scene import FORKS, REPLICAS, Scene
from tests.rollout_server.conftest import build_model, policy

TOLERANCE = 1e-5
PRELOADED = [
    "tests.chaos.children",
    # What an engine would import in each of its processes after they were forked.
    "vllm.v1.worker.cpu_worker",
    "vllm.model_executor.models.qwen3",
]


@pytest.fixture(scope="package")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = build_model(tmp_path_factory.mktemp("model"), tied=False)
    policy(folder, seed=0).save_pretrained(folder)
    return folder


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def running_scene(
    model: Path, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Scene]:
    weights = tmp_path_factory.mktemp("weights")
    with (
        # A short name: a socket's path may have 107 characters.
        tempfile.TemporaryDirectory(prefix="chaos-") as folder,
        pytest.MonkeyPatch.context() as patch,
    ):
        config = RolloutServerConfig(model=str(model), replicas=REPLICAS)
        for name, value in environment(config).items():
            patch.setenv(name, value)
        # Processes are forked from one that has imported everything, in a tenth of a second.
        FORKS.set_forkserver_preload(PRELOADED)
        scene = Scene(folder, model, weights)
        patch.setattr(rank_group, "ray", scene.ranks.ray)
        try:
            await scene.open()
            yield scene
        finally:
            await scene.close()


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
