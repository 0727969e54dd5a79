"""A run without tasks: live agents take its sessions, and keep them when the run is done."""

import asyncio
from typing import Any

import pytest

from services.orchestrator.config import OrchestratorConfig
from services.orchestrator.failures import Failures
from services.orchestrator.rollout.episodes import EpisodeSampler
from services.orchestrator.rollout.outside_agents import OutsideAgents
from services.orchestrator.rollout.rollout import RolloutFailed
from services.orchestrator.tasks.task_table import TaskTable
from services.protocol.errors import InvalidInput
from services.protocol.run.orchestrator import RunConfig
from tests.outside.conftest import RUN, request
from tests.outside.test_outside_agents import chat, end, take
from tests.router.conftest import MODEL, Cluster

PLUS_PLUS = {"advantage": "reinforce_plus_plus"}
ALIVE = {"environment": "live", "group_size": 1, "algorithm": PLUS_PLUS}
PROGRESS_S = 1.0


def run_config(**changes: Any) -> RunConfig:
    size = {"name": "r", "model": MODEL, "steps": 1, "batch_groups": 4}
    return RunConfig.from_data(size | ALIVE | changes, source="run.yaml")


def sampler(cluster: Cluster) -> EpisodeSampler:
    config = OrchestratorConfig(router_url=cluster.url)
    agents = OutsideAgents(config, RUN, live=True)
    return EpisodeSampler(config, player=agents, model=MODEL, run_id=RUN)


def test_a_live_run_has_no_tasks_and_nothing_held_out() -> None:
    tasks = TaskTable(run_config())
    assert (list(tasks.train), list(tasks.heldout), tasks.sets) == (["live"], [], {})
    assert tasks["live"].environment == "live"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"task_file": "tasks.jsonl"}, "environment"),
        ({"group_size": 2}, "group_size"),
        ({"algorithm": {}}, "group_size"),
    ],
)
def test_what_does_not_go_with_live_sessions_is_named(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput, match=field):
        run_config(**changes)


async def test_an_offer_waits_as_long_as_nobody_talks(cluster: Cluster) -> None:
    arrived: list[Any] = []
    rollout = request(n=1, progress_s=PROGRESS_S)
    async with sampler(cluster) as rollouts:
        sampling = asyncio.create_task(rollouts.sample(rollout, lambda *one: arrived.append(one)))
        done, _ = await asyncio.wait({sampling}, timeout=3 * PROGRESS_S)
        assert not done
        taken = await take(cluster)
        assert taken["task"] == {}
        await chat(cluster, taken["session"]["id"], "hi")
        assert await end(cluster, taken["session"]["id"], reward=0.5) == 200
        await asyncio.wait_for(sampling, 60)
    ((_, _, score),) = arrived
    assert score.reward == 0.5


async def test_a_conversation_outlives_the_runs_interest_in_it(cluster: Cluster) -> None:
    rollout = request(n=1, progress_s=PROGRESS_S)
    async with sampler(cluster) as rollouts:
        sampling = asyncio.create_task(rollouts.sample(rollout, lambda *one: None))
        session = (await take(cluster))["session"]["id"]
        with pytest.raises(RolloutFailed, match="agent_abandoned"):
            await asyncio.wait_for(sampling, 60)
        assert await chat(cluster, session, "are you\nstill there")


async def test_an_offer_that_nobody_took_ends_with_the_run(cluster: Cluster) -> None:
    async with sampler(cluster) as rollouts:
        sampling = asyncio.create_task(rollouts.sample(request(n=1), lambda *one: None))
        async with asyncio.timeout(60):
            while not (await listed(cluster)):  # noqa: ASYNC110  (it is announced to takers only)
                await asyncio.sleep(0.01)
        sampling.cancel()
        await asyncio.wait({sampling})
    assert await listed(cluster) == []


async def listed(cluster: Cluster) -> list[Any]:
    answer = await cluster.http.get(f"{cluster.url}/v1/sessions?state=open")
    return answer.json()["data"]


def test_silent_users_do_not_end_a_run() -> None:
    failures = Failures()
    failures.add("agent_abandoned", task_id="live", problem="gone", expected=True)
    assert (failures.counts["agent_abandoned"], failures.in_row) == (1, 0)
    failures.add("connection", task_id="live", problem="no router")
    assert failures.in_row == 1
