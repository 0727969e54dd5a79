"""A cluster whose deployment file is changed while a run goes on."""

import copy
import json
import os
import sqlite3
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import ray
from ray.serve.context import _get_global_client

from millrace_tools.client.runs_client import RunsClient
from millrace_tools.deploy.deployment import Deployment
from services.protocol.run.orchestrator import RunConfig, RunState, RunStatus
from tests.cluster.conftest import Cluster

ENDED = (RunState.FINISHED, RunState.FAILED, RunState.STOPPED)
WAIT_S = 280.0
OWNERS = {
    "ray::ServeReplica:": None,  # the application's name follows
    "ray::TrainerRank": "ranks",
    "ray::WeightBusActor": "bus",
}


class LiveCluster:
    """What an operator does: edit the file, deploy it, look at who is still there."""

    def __init__(self, cluster: Cluster, content: dict[str, Any]) -> None:
        self.cluster, self.content = cluster, content
        self._deployment = Deployment.check(content, source="deployment")
        self.runs = RunsClient(cluster.url)

    def deploy(self, application: str, **changes: Any) -> None:
        """`serve deploy` of the file, with these keys of one application changed."""
        self.content = copy.deepcopy(self.content)
        (app,) = (app for app in self.content["applications"] if app["name"] == application)
        for key, value in changes.items():
            app[key] = app[key] | value if isinstance(app.get(key), dict) else value
        self._deployment = Deployment.check(self.content, source="deployment")
        self._deployment.start(changing=True)

    def processes(self) -> dict[str, set[int]]:
        """Process ids of every service, by application; ranks and bus by their own names."""
        found: dict[str, set[int]] = defaultdict(set)
        for process in psutil.Process(os.getpid()).children(recursive=True):
            try:
                title = " ".join(process.cmdline())
            except psutil.Error:
                continue
            for beginning, owner in OWNERS.items():
                if title.startswith(beginning):
                    name = owner or title.removeprefix(beginning).split(":")[0]
                    found[name].add(process.pid)
        return dict(found)

    def wait(self, true: Callable[[], bool], what: str) -> None:
        """Wait, and look at the run meanwhile: it must not end."""
        deadline = time.monotonic() + WAIT_S
        while not true():
            if time.monotonic() > deadline:
                states = {state.name: state.status for state in self._deployment.states()}
                raise AssertionError(f"not in {WAIT_S:g} s: {what}; {states}")
            time.sleep(0.1)

    def wait_until_running(self, application: str, *, without: set[int]) -> None:
        """Wait until the application runs, and in none of these processes."""

        def replaced() -> bool:
            (state,) = (s for s in self._deployment.states() if s.name == application)
            now = self.processes().get(application, set())
            return state.status == "RUNNING" and bool(now) and not now & without

        self.wait(replaced, f"a new {application}")

    def start(self, config: RunConfig, *, resume: str | None = None) -> str:
        return self.runs.start(config, resume=resume).run_id

    def goes_on(self, run_id: str, steps: int = 2) -> RunStatus:
        """Wait until the run has made further train steps, all of them after this moment."""
        goal = self.runs.status(run_id).step + steps
        self.wait(lambda: self._step(run_id) >= goal, f"{steps} more train steps")
        return self.runs.status(run_id)

    def _step(self, run_id: str) -> int:
        status = self.runs.status(run_id)
        assert status.state not in ENDED, status.detail
        return status.step


@contextmanager
def dashboard() -> Iterator[str]:
    """An address with Ray's dashboard's answer about Serve: these clusters have no dashboard."""
    client: Any = _get_global_client()

    class Answering(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            details = ray.get(client._controller.get_serve_instance_details.remote(), timeout=300)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(details).encode())

        def log_message(self, *_: Any) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Answering) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join(300)


def assert_nothing_was_lost(status: RunStatus) -> None:
    """The ledger balances, no group failed, and every prompt was admitted once."""
    ledger = status.ledger
    closed = ledger.trained + ledger.filtered + ledger.expired + ledger.failed
    assert ledger.admitted == closed + ledger.in_flight
    assert (ledger.failed, ledger.expired) == (0, 0), status.failures
    with sqlite3.connect(Path(status.run_dir) / "ledger.sqlite") as opened:
        positions = opened.execute("select position from groups order by position").fetchall()
    assert [position for (position,) in positions] == list(range(len(positions)))
