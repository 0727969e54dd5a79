"""Router and orchestrator die while agents outside are in the middle of their episodes."""

import os
import signal
import threading
import time
from typing import Any

import httpx

from millrace_tools.client.runs_client import RunsClient
from services.protocol.run.orchestrator import RunState
from tests.cluster.conftest import READY_S, Cluster
from tests.cluster.test_faults import balances

HALF_PLAYED = 4
ROUTER, SESSIONS = "ray::ServeReplica:router:router", "ray::ServeReplica:router:sessions"
ORCHESTRATOR = "ray::ServeReplica:orchestrator:"


class Agents:
    """Agents that know the cluster's address alone, and try again what a dead router broke."""

    def __init__(self, url: str) -> None:
        self._http = httpx.Client(base_url=url, timeout=READY_S)

    def take(self, wait_s: float) -> dict[str, Any] | None:
        taken = self._sent("take", {"wait_s": wait_s}).json()
        return {**taken["session"], "task": taken["task"]} if taken["session"] else None

    def begun(self) -> dict[str, Any]:
        """A session with one call."""
        session = self.take(30.0)
        assert session is not None, "the run offers no session"
        self.ask(session)
        return session

    def ask(self, session: dict[str, Any], said: str = "") -> None:
        messages = [{"role": "user", "content": said}] if said else session["task"]["messages"]
        body = {"model": "any", "messages": messages}
        headers = {"authorization": f"Bearer {session['id']}"}
        self._sent("chat/completions", body, headers, at="/v1/")

    def finish(self, session: dict[str, Any], reward: float) -> None:
        self._sent(f"{session['id']}/finish", {"reward": reward})

    def calls(self, session: dict[str, Any]) -> int:
        seen = self._http.get(f"/v1/sessions/{session['id']}").raise_for_status().json()
        return sum(seen["calls"].values())

    def play_until(self, over: threading.Event) -> None:
        reward = 0.0
        while not over.is_set():
            session = self.take(1.0)
            if session is not None:
                self.ask(session)
                reward = 1.0 - reward
                self.finish(session, reward)

    def _sent(
        self, path: str, body: Any, headers: Any = None, *, at: str = "/v1/sessions/"
    ) -> httpx.Response:
        deadline = time.monotonic() + READY_S
        while True:
            try:
                answer = self._http.post(f"{at}{path}", json=body, headers=headers)
                if answer.status_code != 503:
                    return answer.raise_for_status()
            except httpx.TransportError:
                pass
            assert time.monotonic() < deadline, f"no answer to {path}"
            time.sleep(0.2)


def kill(cluster: Cluster, title: str) -> None:
    """kill -9; Serve starts another one."""
    (process,) = cluster.processes(title)
    os.kill(process.pid, signal.SIGKILL)
    cluster.wait_for(
        lambda: process.pid not in [one.pid for one in cluster.processes(title)], "its end"
    )
    cluster.wait_for(lambda: bool(cluster.processes(title)), "another one")


def test_half_played_episodes_outlive_the_router_and_the_orchestrator(cluster: Cluster) -> None:
    agents, over = Agents(cluster.url), threading.Event()
    changes = {"environment": "external", "evaluation": {"tasks": 1}, "steps": 2}
    with RunsClient(cluster.url) as client:
        run_id = client.start(cluster.run_config(**changes)).run_id
        agents.finish(agents.begun(), 1.0)  # of the evaluation before training
        half = [agents.begun() for _ in range(HALF_PLAYED)]
        kill(cluster, ROUTER)
        kill(cluster, SESSIONS)
        for session in half:
            agents.ask(session)
        assert [agents.calls(session) for session in half] == [2] * HALF_PLAYED
        for number, session in enumerate(half[::2]):
            agents.finish(session, number)
        kill(cluster, ORCHESTRATOR)
        for number, session in enumerate(half[1::2]):
            agents.finish(session, number)
        playing = threading.Thread(target=agents.play_until, args=(over,))
        playing.start()
        try:
            status = cluster.follow(client, run_id)
        finally:
            over.set()
            playing.join()
    assert status.state is RunState.FINISHED, status.detail
    assert status.failures == {}
    assert balances(status.ledger)
