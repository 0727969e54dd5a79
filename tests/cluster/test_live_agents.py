"""A run without tasks learns from the sessions of live agents, and they never wait for it."""

from millrace_tools.client.runs_client import RunsClient
from services.protocol.run.orchestrator import RunState
from tests.cluster.conftest import Cluster
from tests.cluster.test_faults import balances
from tests.cluster.test_outside_kills import Agents

SAID = "What is two and three?"


def test_sessions_of_live_agents_train_as_they_come(cluster: Cluster) -> None:
    agents, talking = Agents(cluster.url), []
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
        for number in range(1000):
            status = client.status(run_id)
            if status.state not in (RunState.STARTING, RunState.EVALUATING, RunState.TRAINING):
                break
            session = agents.take(1.0)
            if session is None:
                continue  # the window is full: a live agent goes on without a session
            assert session["task"] == {}
            agents.ask(session, SAID)
            if number % 4 == 1:
                talking.append(session)
            else:
                agents.finish(session, float(number % 2))
        status = cluster.follow(client, run_id)
    assert status.state is RunState.FINISHED, status.detail
    assert status.step == 2
    assert balances(status.ledger)
    assert status.evaluations == []
    assert talking
    for session in talking:
        agents.ask(session, SAID)  # the run is over, and its user is not
