"""Engines and ranks that take turns: a run, requests of others, and deaths in each phase."""

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import ray

from millrace_tools.client.runs_client import RunsClient
from services.protocol.run.orchestrator import RunState, RunStatus
from services.protocol.weights.weight_bus import ReplicaState
from tests.cluster.conftest import MODEL_NAME, Cluster

LOOK_S = 0.005


def states(cluster: Cluster) -> set[ReplicaState]:
    """Of all replicas; none while the bus is away."""
    try:
        return {member.state for member in cluster.table().members}
    except (ValueError, ray.exceptions.RayActorError):
        return set()


def turns(status: RunStatus) -> list[dict[str, object]]:
    """Spans of turns in the run's timeline."""
    lines = (Path(status.run_dir) / "timeline.jsonl").read_text().splitlines()
    return [span for span in map(json.loads, lines) if span["kind"] == "turn"]


def test_a_run_trains_in_turns_and_answers_of_others_wait_for_the_engines(
    cluster: Cluster,
) -> None:
    ended, seen = threading.Event(), set[ReplicaState]()

    def ask() -> list[float]:
        took = []
        while not ended.is_set():
            began = time.monotonic()
            answer = cluster.openai.chat.completions.create(
                model=MODEL_NAME, messages=[{"role": "user", "content": "add"}], max_tokens=8
            )
            assert answer.choices[0].finish_reason in ("stop", "length")
            took.append(time.monotonic() - began)
        return took

    def watch() -> None:
        while not ended.is_set():
            seen.update(states(cluster))
            time.sleep(LOOK_S)

    with ThreadPoolExecutor() as pool:
        asking, watching = pool.submit(ask), pool.submit(watch)
        try:
            status = cluster.run_to_the_end(cluster.run_config(steps=6))
        finally:
            ended.set()
        watching.result()
        assert asking.result(), "others were answered"
    assert (status.state, status.step) == (RunState.FINISHED, 6)
    assert len(turns(status)) == 6
    assert ReplicaState.LENT in seen


def engine_dies(cluster: Cluster) -> None:
    cluster.processes("ray::ServeReplica:rollout_server")[0].kill()


def rank_dies(cluster: Cluster) -> None:
    cluster.processes("ray::TrainerRank")[0].kill()


def bus_dies(cluster: Cluster) -> None:
    cluster.processes("ray::WeightBusActor")[0].kill()


def orchestrator_dies(cluster: Cluster) -> None:
    cluster.processes("ray::ServeReplica:orchestrator:")[0].kill()


def sampling(cluster: Cluster) -> bool:
    return states(cluster) == {ReplicaState.LIVE}


def lent(cluster: Cluster) -> bool:
    return ReplicaState.LENT in states(cluster)


def waking(cluster: Cluster) -> bool:
    return bool(states(cluster) & {ReplicaState.CATCHING_UP, ReplicaState.STAGING})


DEATHS: list[tuple[Callable[[Cluster], None], Callable[[Cluster], bool]]] = [
    *((dies, phase) for phase in (sampling, lent, waking) for dies in (engine_dies, rank_dies)),
    (bus_dies, lent),
    (orchestrator_dies, lent),
]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_deaths_in_each_phase_of_a_turn_lose_nothing(
    cluster: Cluster,
) -> None:
    # It shall not end because the policy has learned everything, or has collapsed.
    steady = {"learning_rate": 1e-6}
    config = cluster.run_config(steps=400, rollout_timeout_s=600, algorithm=steady)
    with RunsClient(cluster.url) as client:
        run_id = client.start(config).run_id
        for dies, phase in DEATHS:
            after(cluster, client, run_id, steps=2)
            when(cluster, phase)
            dies(cluster)
        cluster.wait_until_whole()
        after(cluster, client, run_id, steps=3)
        client.control(run_id, "stop")
        status = cluster.follow(client, run_id)
    assert status.state is RunState.STOPPED
    counts = status.ledger
    assert counts.trained + counts.filtered >= status.step * config.batch_groups
    assert counts.failed == 0, status.findings
    closed = counts.trained + counts.filtered + counts.expired
    assert counts.admitted == closed + counts.in_flight


def when(cluster: Cluster, phase: Callable[[Cluster], bool]) -> None:
    deadline = time.monotonic() + 120
    while not phase(cluster):
        assert time.monotonic() < deadline, f"{phase.__name__}: {cluster.table()}"
        time.sleep(LOOK_S)


def after(cluster: Cluster, client: RunsClient, run_id: str, *, steps: int) -> None:
    """Return when so many more train steps are done."""
    first = client.status(run_id).step
    furthest = first

    def done() -> bool:
        nonlocal furthest
        status = client.status(run_id)
        assert status.state not in (RunState.FAILED, RunState.FINISHED), status.detail
        furthest = max(furthest, status.step)
        return furthest >= first + steps

    cluster.wait_for(done, f"{steps} train steps after {first}", timeout_s=240)
