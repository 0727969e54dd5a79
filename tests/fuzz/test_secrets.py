"""Keys are put wherever one can be given, and then looked for wherever something is written."""

import asyncio
import json
import logging
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from ray.util import metrics

from services.access.access_control import protect
from services.access.config import AccessConfig
from services.observability.log import JsonFormatter
from services.orchestrator.api import http_api as runs_api
from services.orchestrator.lifecycle.runs import Runs
from services.orchestrator.run_folder.run_directory import RunDirectory
from services.reward_service.http_api import http_api as reward_api
from tests.orchestrator.fakes import world
from tests.reward_service.conftest import start_scoring
from tests.router.conftest import MODEL, Cluster

MARK = "canary" + secrets.token_hex(8)

CLIENT = ("httpx", "httpcore")
"""Who asks here; what they log is the caller's."""


def marked(name: str) -> str:
    """A secret that is found again by the mark in it."""
    return f"{MARK}-{name}-0123456789abcdef"


class Written:
    """Everything that the services write down or send."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.answers: list[str] = []

    def leaks(self) -> list[str]:
        return [line[:400] for line in (*self.lines, *self.answers) if MARK in line]


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> Iterator[Written]:
    written = Written()

    class Keeping(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.name.partition(".")[0] not in CLIENT:
                written.lines.append(JsonFormatter().format(record))

    def note(_: Any, value: float = 0.0, tags: Any = None) -> None:
        written.lines.append(json.dumps(tags))

    for kind, method in (("Counter", "inc"), ("Gauge", "set"), ("Histogram", "observe")):
        monkeypatch.setattr(getattr(metrics, kind), method, note)
    services = ("router", "orchestrator", "reward_service", "access")
    loggers = [logging.getLogger(), *(logging.getLogger(f"millrace.{name}") for name in services)]
    keeping = Keeping(logging.DEBUG)
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.addHandler(keeping)
        logger.setLevel(logging.DEBUG)
    yield written
    for logger, level in zip(loggers, levels, strict=True):
        logger.removeHandler(keeping)
        logger.setLevel(level)


@pytest.fixture
def access(monkeypatch: pytest.MonkeyPatch) -> AccessConfig:
    monkeypatch.setenv("CANARY_KEYS", f"- {{name: alice, key: {marked('api-key')}}}")
    monkeypatch.setenv("CANARY_ROUTER_KEY", marked("router-key"))
    monkeypatch.setenv("CANARY_BACKEND_KEY", marked("backend-key"))
    monkeypatch.setenv("HF_TOKEN", marked("hf-token"))
    monkeypatch.setenv("RAY_AUTH_TOKEN", marked("ray-token"))
    monkeypatch.setattr(RunDirectory, "draw_learning_curve", lambda self: None)
    return AccessConfig(api_keys_env="CANARY_KEYS")


async def every_way(http: httpx.AsyncClient, method: str, url: str, body: Any) -> list[str]:
    """The request with a good key, and with wrong ones wherever people have put keys."""
    wrong = marked("wrong")
    headers = [
        {"authorization": f"Bearer {marked('api-key')}"},
        {"authorization": f"Bearer {wrong}"},
        {"authorization": f"Basic {wrong}"},
        {"authorization": wrong},
        {"x-api-key": wrong, "cookie": f"key={wrong}"},
    ]
    sent = [(url, shown) for shown in headers]
    sent += [(f"{url}?api_key={wrong}", shown) for shown in headers[:2]]
    answers = [await http.request(method, to, json=body, headers=shown) for to, shown in sent]
    assert {answer.status_code for answer in answers} >= {401}
    return [f"{answer.headers}{answer.text}" for answer in answers]


async def test_the_router_keeps_keys_to_itself(written: Written, access: AccessConfig) -> None:
    async def refuse(request: web.Request) -> web.Response:
        assert request.headers["authorization"] == f"Bearer {marked('backend-key')}"
        raise web.HTTPUnauthorized(text="no")

    outside = web.Application()
    outside.router.add_route("*", "/{path:.*}", refuse)
    server = TestServer(outside)
    await server.start_server()
    url = f"http://127.0.0.1:{server.port}"
    backend = {"url": url, "model": "elsewhere", "api_key_env": "CANARY_BACKEND_KEY"}
    cluster = Cluster()
    await cluster.start(
        replicas=1, access_log=1.0, access=access, backends=[backend], lease_wait_s=0.1
    )
    messages = [{"role": "user", "content": "hello"}]
    for model in (MODEL, "elsewhere", "nobody"):
        ask = {"model": model, "messages": messages, "max_tokens": 2}
        chat = f"{cluster.url}/v1/chat/completions"
        written.answers += await every_way(cluster.http, "POST", chat, ask)
    for path in ("/v1/models", "/v1/sessions", "/openapi.json", "/nowhere"):
        written.answers += await every_way(cluster.http, "GET", cluster.url + path, None)
    await cluster.close()
    await server.close()
    assert any('"request"' in line for line in written.lines), "the access log was looked at"
    assert not written.leaks()


async def test_the_orchestrator_and_its_runs_keep_keys_to_themselves(
    written: Written, access: AccessConfig, tmp_path: Path
) -> None:
    async with world(tmp_path, router_key_env="CANARY_ROUTER_KEY") as cluster:
        runs = Runs(cluster.config, lambda: cluster.peers)
        app = runs_api(runs)
        protect(app, access, service="orchestrator")
        transport = httpx.ASGITransport(app, root_path="/v1/runs")
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as http:
            good = {"config": cluster.run_config(steps=2).model_dump(mode="json")}
            bad = {"config": good["config"] | {"task_file": "/nowhere"}}
            written.answers += await every_way(http, "POST", "/v1/runs", bad)
            written.answers += await every_way(http, "POST", "/v1/runs", good)
            run = runs.list()[0].run_id
            async with asyncio.timeout(300):
                await runs.ended(run)
            for path in ("", f"/{run}", f"/{run}/trajectories", f"/{run}/stop"):
                method = "POST" if path.endswith("stop") else "GET"
                written.answers += await every_way(http, method, f"/v1/runs{path}", None)
        await runs.close()
    files = [path for path in cluster.run_root.rglob("*") if path.is_file()]
    assert {"config.yaml", "ledger.sqlite", "metrics.jsonl"} <= {path.name for path in files}
    assert not [path for path in files if MARK.encode() in path.read_bytes()]
    assert not written.leaks()


async def test_the_reward_service_keeps_keys_to_itself(
    written: Written, access: AccessConfig
) -> None:
    # With the endpoints' own keys in their addresses, of which nobody answers.
    graders = {
        "query": f"http://127.0.0.1:9/grade?key={marked('query')}",
        "user": f"http://user:{marked('password')}@127.0.0.1:9/grade",
        "path": f"http://[::1]:9/{marked('path')}",
    }
    scoring = await start_scoring("B", slots=1, http_graders=graders)
    app = reward_api(scoring)
    protect(app, access, service="reward_service", open_paths=("/health",))
    jobs = [
        {"job_id": name, "completion": "4", "grader": {"kind": "http", "name": name}}
        for name in graders
    ]
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(app), base_url="http://x", timeout=30
    ) as http:
        written.answers += await every_way(http, "POST", "/v1/grade", {"jobs": jobs})
        written.answers += await every_way(http, "GET", "/v1/graders", None)
        unknown = {"jobs": [{**jobs[0], "grader": {"kind": "http", "name": "nobody"}}]}
        written.answers += await every_way(http, "POST", "/v1/grade", unknown)
    await scoring.tools.aclose()
    scoring.close()
    assert any("infra_error" in answer for answer in written.answers), "the endpoints were asked"
    assert not written.leaks()
