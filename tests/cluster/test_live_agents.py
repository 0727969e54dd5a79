"""A run without tasks learns from the sessions of live agents, and they never wait for it."""

from millrace_tools.client.runs_client import RunsClient
from services.protocol.run.orchestrator import RunState
from tests.cluster.conftest import Cluster
from tests.cluster.test_faults import balances
from tests.cluster.test_outside_kills import Agents

SAID = "What is two and three?"
TALKING = 10  # more conversations that do not end than the last batch has sessions


def test_sessions_of_live_agents_train_as_they_come(cluster: Cluster) -> None:
    agents, talking, reward = Agents(cluster.url), [], 0.0
    changes = {
        "environment": "live",
        "task_file": None,
        "group_size": 1,
        "steps": 2,
        "algorithm": {"advantage": "reinforce_plus_plus"},
        "schedule": {"preset": "async", "oversample": 1.0, "on_stale": "drop"},
    }
    with RunsClient(cluster.url) as client:
        run_id = client.start(cluster.run_config(**changes)).run_id
        for _ in range(1000):
            status = client.status(run_id)
            if status.state not in (RunState.STARTING, RunState.EVALUATING, RunState.TRAINING):
                break
            session = agents.take(1.0)
            if session is None:
                continue  # the window is full: a live agent goes on without a session
            assert session["task"] == {}
            agents.ask(session, SAID)
            if len(talking) < TALKING:
                talking.append(session)
            else:
                reward = 1.0 - reward
                agents.finish(session, reward)
        status = cluster.follow(client, run_id)
    assert status.state is RunState.FINISHED, status.detail
    assert status.step == 2
    assert balances(status.ledger)
    assert status.evaluations == []
    assert len(talking) == TALKING
    for session in talking:
        agents.ask(session, SAID)  # the run is over, and its user is not
