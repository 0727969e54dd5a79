"""Workspaces in the real cluster: through the router's port, on two replicas, and after a kill."""

import contextlib
import json

import httpx
import pytest

from tests.cluster.conftest import Cluster

REPLICA = "ray::ServeReplica:sandboxes"


@pytest.fixture
def sandboxes(cluster: Cluster) -> httpx.Client:
    """A client of the application, once the router leads there."""
    http = httpx.Client(base_url=f"{cluster.url}/v1/sandboxes", timeout=300, trust_env=False)
    cluster.wait_for(lambda: http.get("").status_code == 200, "an answer of the sandboxes")
    return http


def on_two_replicas(http: httpx.Client) -> list[str]:
    """Ids of workspaces, some on each replica."""
    ids: list[str] = []
    for _ in range(50):
        answer = http.post("", json={"files": {"sums.py": "print(sum(map(int, input().split())))"}})
        if answer.status_code == 503:  # a jail that a busy machine did not start in time
            continue
        assert answer.status_code == 201, answer.text
        ids.append(answer.json()["id"])
        if len({one.partition("-")[0] for one in ids}) == 2:
            return ids
    raise AssertionError(f"{len(ids)} workspaces, not on two replicas: {answer.text}")


def test_every_workspace_is_reached_wherever_a_request_comes(sandboxes: httpx.Client) -> None:
    ids = on_two_replicas(sandboxes)
    for one in ids * 3:
        cell = sandboxes.post(f"/{one}/python", json={"code": "n = globals().get('n', 0) + 1\nn"})
        assert cell.json()["status"] == "ok"
    assert {
        sandboxes.post(f"/{one}/python", json={"code": "n"}).json()["result"] for one in ids
    } == {"3"}
    listed = {one["id"] for one in sandboxes.get("").json()}
    assert listed.issuperset(ids)
    with sandboxes.stream(
        "POST", f"/{ids[0]}/exec", json={"shell": "echo a; echo b", "stream": True}
    ) as streamed:
        last = [line for line in streamed.iter_lines() if line][-1]
    assert json.loads(last.removeprefix("data: "))["result"]["stdout"] == "a\nb\n"
    program = {"argv": ["python3", "sums.py"], "stdin": "1 2", "expected": "3"}
    score = sandboxes.post(f"/{ids[0]}/grade", json={"tests": [program]}).json()
    assert (score["verdict"], score["reward"]) == ("accepted", 1.0)
    grader = {"kind": "python_stdio", "tests": [{"stdin": "2 3", "expected": "5"}]}
    body = {"path": "sums.py", "grader": grader}
    score = sandboxes.post(f"/{ids[-1]}/grade", json=body).json()
    assert (score["verdict"], score["reward"]) == ("accepted", 1.0), score["detail"]
    for one in ids:
        assert sandboxes.delete(f"/{one}").status_code in (200, 410)


def test_workspaces_of_a_killed_replica_are_lost_and_the_others_go_on(
    cluster: Cluster, sandboxes: httpx.Client
) -> None:
    ids = on_two_replicas(sandboxes)
    victim = next(iter(cluster.processes(REPLICA)))
    victim.kill()

    def status(one: str) -> int:
        with contextlib.suppress(httpx.HTTPError):
            return sandboxes.get(f"/{one}").status_code
        return 0

    cluster.wait_for(lambda: 410 in {status(one) for one in ids}, "a lost workspace")
    cluster.wait_for(lambda: {status(one) for one in ids} == {200, 410}, "nothing in between")
    (reason,) = {
        sandboxes.get(f"/{one}").json()["error"]["reason"] for one in ids if status(one) == 410
    }
    assert reason == "lost"
    cluster.wait_for(lambda: len(cluster.processes(REPLICA)) == 2, "a new replica")
    for one in ids:
        sandboxes.delete(f"/{one}")
    for one in on_two_replicas(sandboxes):
        assert sandboxes.delete(f"/{one}").status_code == 200
