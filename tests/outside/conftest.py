"""A router in this process, the sampler of a run, and agents that know neither."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType

import pytest

from services.orchestrator.config import OrchestratorConfig
from services.orchestrator.rollout.episodes import EpisodeSampler
from services.orchestrator.rollout.limits import RolloutLimits
from services.orchestrator.rollout.outside_agents import OutsideAgents
from services.orchestrator.rollout.rollout import RolloutRequest
from services.protocol.reward.grader import AnyGrader
from services.protocol.run.task import Task
from tests.router.conftest import MODEL, Cluster

RUN = "a-run"


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    made = Cluster()
    await made.start()
    yield made
    await made.close()


@asynccontextmanager
async def sampler(
    cluster: Cluster, graders: Mapping[str, AnyGrader] = MappingProxyType({}), *, live: bool = False
) -> AsyncIterator[EpisodeSampler]:
    config = OrchestratorConfig(router_url=cluster.url)
    agents = OutsideAgents(config, RUN, graders, live=live)
    async with EpisodeSampler(config, player=agents, model=MODEL, run_id=RUN) as rollouts:
        yield rollouts


def request(
    said: str = "tell me\nwords", *, n: int = 2, progress_s: float = 60.0, grader: bool = False
) -> RolloutRequest:
    row = {
        "task_id": "t1",
        "messages": [{"role": "user", "content": said}],
        "split": "train",
        "data": {"hint": 7},
    }
    if grader:
        row["grader"] = {"kind": "exact", "expected": "secret"}
    return RolloutRequest(
        session="group",
        messages=[],
        n=n,
        temperature=0.7,
        max_tokens=20,
        seed=5,
        limits=RolloutLimits(total_s=None, progress_s=progress_s),
        task=Task.model_validate(row),
    )
