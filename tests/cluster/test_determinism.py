"""Invariant 10 through real engines, ranks and sandboxes."""

import json
import os
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace_tools.client.runs_client import RunsClient
from services.protocol.run.orchestrator import RunConfig, RunState, RunStatus
from services.trainer.checkpoints.manifest import MANIFEST
from tests.cluster.conftest import REPLICAS, Cluster

STEPS = 3
TOLD = "step", "reward", "groups_trained", "groups_filtered", "tokens_trained"
"""Of a line of `metrics.jsonl`: neither times nor counts of what was thrown away."""
ROW = "step", "group", "task_id", "rewards", "advantages", "verdicts", "lengths"


@pytest.fixture
def repeating(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster with engines that repeat their answers."""
    cluster.change_engines(REPLICAS, determinism=True)
    yield cluster
    cluster.change_engines(REPLICAS)


def lines(status: RunStatus, name: str, keys: tuple[str, ...]) -> set[str]:
    """These fields of each line; what a step that was done again wrote twice must be equal."""
    text = (Path(status.run_dir) / name).read_text()
    read = map(json.loads, text.splitlines())
    return {json.dumps({key: one[key] for key in keys}) for one in read}


def decided(status: RunStatus) -> list[Any]:
    """What the ledger says of every group, apart from versions, which grow from run to run, and
    from attempts and why there were several."""
    with sqlite3.connect(Path(status.run_dir) / "ledger.sqlite") as ledger:
        columns = "group_id, position, epoch, task_id, status, train_step, kept"
        return ledger.execute(f"select {columns} from groups order by group_id").fetchall()


def checkpoints(status: RunStatus) -> dict[str, bytes]:
    """Every file of every checkpoint by its path, but those that name run and folder."""
    folder = Path(status.run_dir) / "checkpoints"
    files = (path for path in folder.rglob("*") if path.is_file())
    kept = (path for path in files if path.name not in (MANIFEST, ".metadata"))
    return {str(path.relative_to(folder)): path.read_bytes() for path in kept}


def killed_and_resumed(cluster: Cluster, config: RunConfig) -> RunStatus:
    """kill -9 of a rank and of the orchestrator after the first train step."""
    with RunsClient(cluster.url) as client:
        run_id = client.start(config).run_id

        def trained() -> bool:
            status = client.status(run_id)
            assert status.state is not RunState.FAILED, status.detail
            return status.step >= 1

        cluster.wait_for(trained, "a train step")
        (orchestrator,) = cluster.processes("ray::ServeReplica:orchestrator:")
        rank = cluster.processes("ray::TrainerRank")[0]
        for process in (rank, orchestrator):
            os.kill(process.pid, signal.SIGKILL)

        def resumed() -> bool:
            others = cluster.processes("ray::ServeReplica:orchestrator:")
            return bool(others) and others[0].pid != orchestrator.pid

        cluster.wait_for(resumed, "another orchestrator")
        return cluster.follow(client, run_id)


@pytest.mark.slow
def test_same_seed_same_schedule_same_numbers(repeating: Cluster) -> None:
    """Two replicas without a fault, and one replica with a kill and a resume."""
    config = repeating.run_config(
        schedule={"preset": "sync"}, determinism=True, steps=STEPS, evaluation={"tasks": 1}
    )
    first = repeating.run_to_the_end(config)
    assert first.state is RunState.FINISHED, first.detail
    repeating.change_engines(1, determinism=True)
    second = killed_and_resumed(repeating, config)
    assert (second.state, second.step) == (RunState.FINISHED, STEPS), second.detail
    assert first.ledger.failed == second.ledger.failed == 0
    assert decided(first) == decided(second)
    assert lines(first, "groups.jsonl", ROW) == lines(second, "groups.jsonl", ROW)
    assert lines(first, "metrics.jsonl", TOLD) == lines(second, "metrics.jsonl", TOLD)
    trained = [json.loads(line)["groups_trained"] for line in lines(first, "metrics.jsonl", TOLD)]
    assert len(trained) == STEPS
    assert all(trained)
    one, other = checkpoints(first), checkpoints(second)
    assert one.keys() == other.keys()
    assert {name for name in one if one[name] != other[name]} == set()
    written = [content for name, content in one.items() if name.endswith(".distcp")]
    assert len(written) >= STEPS
    assert len(set(written)) == len(written), "a step changed nothing"
