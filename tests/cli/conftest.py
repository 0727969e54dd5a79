"""A real HTTP server that stands in for the orchestrator's API and the router's."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from services.protocol.run.orchestrator import LedgerCounts, RunState, RunStatus, RunSummary

Reply = tuple[int, Any]


class Orchestra:
    """Scripted answers, and what was asked.

    Attributes:
        statuses: answers to `GET /v1/runs/{id}` in turn; the last one stays.
        replies: answers by `(method, path)` that win over the usual ones; of a list one
            after the other, and the last one stays.
    """

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.statuses = [self.status(step=0), self.status(step=1), self.finished()]
        self.replies: dict[tuple[str, str], Reply | list[Reply]] = {}
        self.posted: list[tuple[str, Any]] = []
        self.polled = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _talker(self))
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join(300)
        self._server.server_close()

    def status(self, **changes: Any) -> RunStatus:
        fields: dict[str, Any] = {
            "run_id": "tiny-1",
            "state": RunState.TRAINING,
            "run_dir": str(self.run_dir),
            "step": 0,
            "steps": 2,
            "reward": 0.25,
            "heldout_pass_rate": 0.1,
            "policy_version": changes.get("step", 0),
            "staleness": 1.0,
            "tokens_sampled": 1792,
            "tokens_evaluated": 256,
            "tokens_per_second": 512.0,
            "live_replicas": 2,
            "ledger": LedgerCounts(admitted=4, trained=3, filtered=1),
            "elapsed_s": 12.0,
            "detail": "training",
        }
        return RunStatus(**(fields | changes))

    def finished(self) -> RunStatus:
        summary = RunSummary(
            run_id="tiny-1",
            heldout_pass_rate_before=0.1,
            heldout_pass_rate_after=0.95,
            train_steps=2,
            wall_s=12.5,
            tokens_sampled=3584,
            tokens_evaluated=512,
            weight_pushes=6,
            policy_version=2,
            seed=3,
            ledger=LedgerCounts(admitted=4, trained=3, filtered=1),
        )
        return self.status(step=2, state=RunState.FINISHED, summary=summary, detail="all done")

    def answer(self, method: str, path: str, body: Any) -> Reply:
        if method == "POST":
            self.posted.append((path, body))
        if (method, path) in self.replies:
            reply = self.replies[method, path]
            if isinstance(reply, list):
                return reply.pop(0) if len(reply) > 1 else reply[0]
            return reply
        if (method, path) == ("POST", "/v1/runs"):
            return 201, self.statuses[0].model_dump(mode="json")
        if (method, path) == ("POST", "/v1/runs/tiny-1/stop"):
            stopped = self.status(state=RunState.STOPPED, detail="stopped")
            return 200, stopped.model_dump(mode="json")
        if (method, path) == ("GET", "/health"):
            return 200, {"leased_replicas": 2, "members": 2}
        if (method, path) == ("GET", "/v1/runs"):
            return 200, [self.statuses[0].model_dump(mode="json")]
        if (method, path) == ("GET", "/v1/runs/tiny-1"):
            current = self.statuses.pop(0) if len(self.statuses) > 1 else self.statuses[0]
            self.polled.set()
            return 200, current.model_dump(mode="json")
        if (method, path) == ("GET", "/v1/runs/tiny-1/trajectories"):
            return 200, [_trajectory(step) for step in range(1, 11)]
        return 404, {"detail": "Not Found"}


def _trajectory(step: int) -> dict[str, Any]:
    return {
        "step": step,
        "messages": [{"role": "user", "content": f"add {step} [/]"}],
        "answer": f"return a+{step}",
        "reward": float(step > 5),
        "verdict": "accepted" if step > 5 else "wrong_answer",
    }


def _talker(orchestra: Orchestra) -> type[BaseHTTPRequestHandler]:
    class Talker(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._reply("GET")

        def do_POST(self) -> None:
            self._reply("POST")

        def _reply(self, method: str) -> None:
            size = int(self.headers.get("content-length") or 0)
            body = json.loads(self.rfile.read(size)) if size else None
            code, content = orchestra.answer(method, self.path.partition("?")[0], body)
            events = isinstance(content, str)
            data = content.encode() if events else json.dumps(content).encode()
            self.send_response(code)
            kind = "text/event-stream" if events else "application/json"
            self.send_header("content-type", kind)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            return

    return Talker


@pytest.fixture
def orchestra(tmp_path: Path) -> Iterator[Orchestra]:
    run_dir = tmp_path / "runs" / "tiny-1"
    run_dir.mkdir(parents=True)
    standing_in = Orchestra(run_dir)
    yield standing_in
    standing_in.close()


@pytest.fixture
def closed_url() -> str:
    """An address at which nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


@pytest.fixture(autouse=True)
def _no_dashboard(monkeypatch: pytest.MonkeyPatch, closed_url: str) -> None:
    """Whatever else runs on this machine."""
    monkeypatch.setenv("RAY_DASHBOARD_ADDRESS", closed_url)


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    """A good run file beside a good task file."""
    grader = {
        "kind": "python_function",
        "entry_point": "f",
        "tests": [{"args": [1], "expected": 1}],
    }
    message = {"role": "user", "content": "return it"}
    rows = [
        {"task_id": split, "messages": [message], "split": split, "grader": grader}
        for split in ("train", "heldout")
    ]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    file = tmp_path / "run.yaml"
    file.write_text(
        "name: tiny\ntask_file: tasks.jsonl\nrun_root: ../elsewhere\nmodel: m\n"
        "steps: 2\nbatch_groups: 2\ngroup_size: 2\n"
    )
    return file


@pytest.fixture
def changed(run_file: Path) -> Callable[[str, str], Path]:
    """Replaces text in the run file."""

    def change(before: str, after: str) -> Path:
        text = run_file.read_text()
        assert before in text
        run_file.write_text(text.replace(before, after))
        return run_file

    return change
