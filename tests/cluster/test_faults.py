"""Processes die in the middle of their work, and nothing is lost."""

import json
import os
import signal
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from millrace_tools.client.runs_client import RunsClient
from services.protocol.run.orchestrator import LedgerCounts, RunState, RunStatus
from tests.cluster.conftest import MODEL_NAME, Cluster

LONG, STEPS = 600, 8


def balances(ledger: LedgerCounts) -> bool:
    accounted = ledger.trained + ledger.filtered + ledger.expired + ledger.failed
    return ledger.admitted == accounted + ledger.in_flight


@dataclass(frozen=True, kw_only=True)
class Death:
    """What came of a rollout server that was killed while it answered, in the middle of a run."""

    tokens: int | None
    trajectory: dict[str, Any]
    run: RunStatus


@pytest.fixture(scope="module")
def death(running_cluster: Cluster) -> Death:
    """kill -9, by its process id in the bus."""
    running_cluster.wait_until_whole()
    with RunsClient(running_cluster.url) as client:
        run_id = client.start(running_cluster.run_config(steps=STEPS)).run_id
        running_cluster.wait_for(lambda: client.status(run_id).step >= 2, "two train steps")
        tokens, trajectory = answered_by_one_that_is_killed(running_cluster)
        run = running_cluster.follow(client, run_id)
    return Death(tokens=tokens, trajectory=trajectory, run=run)


def answered_by_one_that_is_killed(cluster: Cluster) -> tuple[int | None, dict[str, Any]]:
    """Tokens by their count in the usage, and the trajectory."""
    raw = cluster.openai.chat.completions.with_raw_response.create(
        model=MODEL_NAME,
        messages=[{"role": "user", "content": "a plus b, minus c"}],
        temperature=1.0,
        max_tokens=LONG,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"return_trajectory": True, "ignore_eos": True},
    )
    serving = raw.headers["x-millrace-replica"]
    (victim,) = (m.pid for m in cluster.table().members if m.replica_id == serving)
    trajectory, usage, killed = None, None, False
    for piece in raw.parse():
        usage = piece.usage or usage
        for choice in piece.choices:
            trajectory = choice.model_dump().get("trajectory") or trajectory
            if choice.delta.content and not killed:
                os.kill(victim, signal.SIGKILL)
                killed = True
    assert killed
    assert trajectory is not None
    assert usage is not None
    return usage.completion_tokens, trajectory


def test_a_replicas_death_costs_no_request(death: Death) -> None:
    assert len(death.trajectory["token_ids"]) == death.tokens == LONG
    assert len({replica for *_, replica in death.trajectory["spans"]}) == 2


def test_every_admitted_sample_group_closes_exactly_once(death: Death) -> None:
    """The run ends, and the ledger balances."""
    status = death.run
    assert status.state == RunState.FINISHED, status.detail
    assert status.step == STEPS
    assert balances(status.ledger)
    assert status.ledger.in_flight == 0
    assert status.ledger.failed == 0
    assert_no_prompt_was_skipped_or_trained_twice(Path(status.run_dir), status.ledger)


def assert_no_prompt_was_skipped_or_trained_twice(run_dir: Path, counts: LedgerCounts) -> None:
    with sqlite3.connect(run_dir / "ledger.sqlite") as ledger:
        rows = ledger.execute("select position, status from groups order by position").fetchall()
    assert [position for position, _ in rows] == list(range(counts.admitted))
    steps = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    trained = sum(step["groups_trained"] for step in steps)
    assert sum(status == "trained" for _, status in rows) == trained == counts.trained


def test_a_run_resumes_after_its_trainer_died(cluster: Cluster) -> None:
    with RunsClient(cluster.url) as client:
        run_id = client.start(cluster.run_config(steps=6)).run_id
        cluster.wait_for(lambda: client.status(run_id).step >= 2, "two train steps")
        version = cluster.table().newest_version
        assert version is not None
        ranks = cluster.processes("ray::TrainerRank")
        assert len(ranks) == 2
        ranks[0].kill()
        status = cluster.follow(client, run_id)
    assert status.state == RunState.FINISHED, status.detail
    assert status.step == 6
    assert balances(status.ledger)
    assert status.ledger.in_flight == 0
    assert status.policy_version is not None
    assert status.policy_version > version
