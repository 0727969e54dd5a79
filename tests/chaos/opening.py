"""Opening a scene: its model, its environment, and everything that runs in it."""

import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from unittest.mock import patch

from services.rollout_server.config import RolloutServerConfig
from services.rollout_server.engine.engine_environment import environment
from services.trainer.lead import rank_group
from tests.chaos.scene import FORKS, REPLICAS, TOOL_TOKENS, Scene
from tests.rollout_server.conftest import build_model, policy

PRELOADED = ["tests.chaos.preloaded", "tests.cli.private_cluster_owner"]
"""The second is for tests/cli: a test session has one process to fork from."""


def make_model(folder: Path) -> Path:
    """A two-layer Qwen3 with weights, for trainer and replicas."""
    build_model(folder, tied=False, more_tokens=TOOL_TOKENS)
    policy(folder, seed=0).save_pretrained(folder)
    return folder


@asynccontextmanager
async def opened(model: Path, weights: Path, *, replicas: int = REPLICAS) -> AsyncIterator[Scene]:
    """A bus, a trainer and replicas; every process is ended afterwards."""
    config = RolloutServerConfig(model=str(model), replicas=replicas)
    with (
        # A short name: a socket's path may have 107 characters.
        tempfile.TemporaryDirectory(prefix="chaos-") as folder,
        patch.dict(os.environ, environment(config)),
    ):
        # Processes are forked from one that has imported everything, in a tenth of a second.
        FORKS.set_forkserver_preload(PRELOADED)
        scene = Scene(folder, model, weights, replicas=replicas)
        with patch.object(rank_group, "ray", scene.ranks.ray):
            try:
                await scene.open()
                yield scene
            finally:
                await scene.close()
