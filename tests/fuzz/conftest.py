"""The public HTTP interfaces on real sockets, as small as they can be."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from services.orchestrator import api as runs_api
from services.orchestrator.lifecycle.runs import Runs
from services.orchestrator.run_folder.run_directory import RunDirectory
from services.page.http_app import page_app
from services.page.run_store import FolderRunStore
from services.reward_service.http_api import http_api as reward_api
from services.router.config import ListenConfig
from services.router.listener import listener
from tests.conformance.conftest import before, until_idle
from tests.orchestrator.fakes import world
from tests.page.made_run import make_run
from tests.reward_service.conftest import start_scoring
from tests.router.vllm_process import MODEL

PATIENT_S, IMPATIENT_S = 60.0, 1.0
"""How long the services wait for what a client still owes them, which shares their event loop."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fuzz", type=int, default=200, help="random inputs per interface (200)")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "impatient: services soon cut off a client that is slow")


@dataclass(frozen=True, kw_only=True)
class Attacked:
    """An interface and a good request of each kind that it takes.

    Attributes:
        paths: paths below which a client names something.
        good: method, path and body.
        questions: path and query.
    """

    name: str
    port: int
    paths: list[bytes]
    good: Sequence[tuple[str, str, Any]] = ()
    questions: Sequence[tuple[str, dict[str, Any]]] = ()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def _patience_s(request: pytest.FixtureRequest) -> float:
    return IMPATIENT_S if request.node.get_closest_marker("impatient") else PATIENT_S


@contextlib.asynccontextmanager
async def _router(request: pytest.FixtureRequest) -> AsyncIterator[Attacked]:
    cluster = await before(
        request.getfixturevalue("vllm").plain,
        client_read_s=_patience_s(request),
        lease_wait_s=0.1,
        session_poll_max_s=0.05,
        max_body_bytes=1 << 18,
    )
    chat = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 4,
        "n": 1,
        "temperature": 1.0,
        "stream": False,
        "logprobs": True,
        "top_logprobs": 1,
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
        "stream_options": {"include_usage": True},
    }
    good = [
        ("POST", "/v1/chat/completions", chat),
        ("POST", "/v1/completions", {"model": MODEL, "prompt": "hello", "max_tokens": 4}),
        ("POST", "/v1/sessions", {"metadata": {"a": "b"}}),
        ("POST", "/v1/sessions/s/finish", {"reward": 1.0}),
    ]
    async with _listening(cluster.app) as port:
        paths = [b"/v1/sessions", b"/v1/chat/completions", b"/v1/models"]
        listing = {"state": "finished", "after": 0, "limit": 2, "wait_s": 0.0}
        questions = [("/v1/sessions", listing)]
        yield Attacked(name="router", port=port, paths=paths, good=good, questions=questions)
    await until_idle(cluster)
    await cluster.close()


@contextlib.asynccontextmanager
async def _orchestrator(request: pytest.FixtureRequest) -> AsyncIterator[Attacked]:
    async with world(request.getfixturevalue("tmp_path")) as cluster:
        cluster.bus.publish_version(1)
        runs = Runs(cluster.config, lambda: cluster.peers)
        run = {
            "config": cluster.run_config(steps=1).model_dump(mode="json"),
            "resume": None,
        }
        good = [("POST", "/v1/runs", run)]
        async with _listening(_Mounted(runs_api.http_api(runs), "/v1/runs")) as port:
            yield Attacked(name="orchestrator", port=port, paths=[b"/v1/runs"], good=good)
        await runs.close()


@contextlib.asynccontextmanager
async def _reward_service(request: pytest.FixtureRequest) -> AsyncIterator[Attacked]:
    body_s = _patience_s(request)
    scoring = await start_scoring("B", slots=1, max_request_mb=1, request_body_s=body_s)
    parts = [
        {"weight": 1.0, "grader": {"kind": "exact", "expected": "4"}},
        {"weight": 0.5, "grader": {"kind": "maths", "expected": "4"}},
    ]
    graders = [
        {"kind": "exact", "expected": "4", "ignore_case": True},
        {"kind": "weighted", "parts": parts},
        {"kind": "maths", "expected": "\\frac{1}{2}"},
    ]
    jobs = [
        {"job_id": f"j{number}", "completion": "4", "grader": grader}
        for number, grader in enumerate(graders)
    ]
    good = [
        ("POST", "/v1/grade", {"jobs": jobs}),
        ("PUT", "/v1/test-sets/x", [{"stdin": "1", "expected": "1"}]),
    ]
    async with _listening(reward_api(scoring)) as port:
        paths = [b"/v1/test-sets", b"/v1/grade", b"/health"]
        yield Attacked(name="reward_service", port=port, paths=paths, good=good)
    await scoring.tools.aclose()
    scoring.close()


@contextlib.asynccontextmanager
async def _page(request: pytest.FixtureRequest) -> AsyncIterator[Attacked]:
    run = make_run(request.getfixturevalue("tmp_path"))
    api = f"/api/runs/{run.name}"
    rows = {"step": 1, "offset": 0, "limit": 4}
    questions: list[tuple[str, dict[str, Any]]] = [
        ("/groups", rows | {"status": "trained", "task": "t", "sort": "oldest"}),
        ("/curves", {"points": 2}),
        ("/trajectories", rows | {"group": 1, "verdict": "accepted", "mixed": "true"}),
        ("/timeline", {"since": 1000.0, "until": 1050.5, "bins": 20}),
        ("/moment", {"lane": "trainer", "at": 1015, "slack": 0.5}),
        ("/pushes", {"limit": 3}),
        ("/tasks", {"by": "kind", "points": 5}),
        ("/heldout", {"name": "heldout", "before": 0, "after": 4, "change": "lost", "limit": 3}),
        ("/log", {"text": "step a", "level": "warning", "event": "step", "offset": 0}),
        ("/usage", {"points": 5}),
    ]
    async with _listening(page_app(FolderRunStore(run))) as port:
        yield Attacked(
            name="page",
            port=port,
            paths=[b"/static", api.encode(), f"{api}/groups".encode()],
            questions=[(api + path, query) for path, query in questions],
            good=[("POST", f"{api}/notes", {"text": "a note", "author": "somebody"})],
        )


class _Mounted:
    """An application below a path, as Serve's proxy mounts it."""

    def __init__(self, app: Any, root: str) -> None:
        self._app, self._root = app, root

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and not scope["path"].startswith(self._root):
            await send({"type": "http.response.start", "status": 404, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        await self._app({**scope, "root_path": self._root}, receive, send)


@contextlib.asynccontextmanager
async def _listening(app: Any) -> AsyncIterator[int]:
    one = listener.Listener(ListenConfig(port=0))
    await one.start(app)
    try:
        yield one.port
    finally:
        await one.stop()


_INTERFACES = {
    "router": _router,
    "orchestrator": _orchestrator,
    "reward_service": _reward_service,
    "page": _page,
}
_ALIVE = {"orchestrator": "/v1/runs", "page": "/api/runs"}


@pytest.fixture(params=_INTERFACES)
async def attacked(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Attacked]:
    """One interface; after the test it still answers, and nothing of the attack is left in it."""
    monkeypatch.setattr(listener, "_HEAD_S", _patience_s(request))
    monkeypatch.setattr(runs_api, "_BODY_S", _patience_s(request))
    # Drawing takes longer than a whole run here.
    monkeypatch.setattr(RunDirectory, "draw_learning_curve", lambda self: None)
    async with _INTERFACES[request.param](request) as attacked:
        before = len(asyncio.all_tasks())
        yield attacked
        monkeypatch.setattr(listener, "_HEAD_S", PATIENT_S)
        async with asyncio.timeout(300), httpx.AsyncClient(verify=False) as http:
            path = _ALIVE.get(attacked.name, "/health")
            assert (await http.get(attacked.url + path)).status_code == 200
        async with asyncio.timeout(300):
            while len(asyncio.all_tasks()) > before:  # noqa: ASYNC110  (announced to nobody)
                await asyncio.sleep(0.05)


@pytest.fixture
def budget(request: pytest.FixtureRequest) -> int:
    """Random inputs per interface."""
    return int(request.config.getoption("--fuzz", default=200))
