"""The orchestrator asks for keys as the router does, and its own calls and commands show them."""

import asyncio

import httpx
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from millrace_tools.client.runs_client import RunsClient
from services.access.access_control import protect
from services.access.config import AccessConfig
from services.orchestrator.api import http_api
from services.orchestrator.config import OrchestratorConfig
from services.orchestrator.lifecycle.runs import Runs
from services.orchestrator.rollout.limits import RolloutLimits
from services.orchestrator.rollout.rollout import RolloutClient, RolloutFailed, RolloutRequest
from services.protocol.errors import InvalidInput, NotReady

KEY = "a-key-of-some-length"


@pytest.fixture
def runs_api(monkeypatch):
    """The orchestrator's application, which asks for a key."""
    monkeypatch.setenv("RUNS_KEYS", f"- {{name: alice, key: {KEY}}}")
    app = http_api(Runs(OrchestratorConfig(), peers=lambda: None))
    protect(app, AccessConfig(api_keys_env="RUNS_KEYS"), service="orchestrator")
    return app


async def test_runs_cannot_be_started_or_seen_without_a_key(runs_api):
    transport = httpx.ASGITransport(runs_api, root_path="/v1/runs")
    async with httpx.AsyncClient(transport=transport, base_url="http://x") as http:
        for method, path in [("GET", ""), ("POST", ""), ("POST", "/r/stop"), ("GET", "/health")]:
            got = await http.request(method, f"/v1/runs{path}")
            assert got.status_code == 401, path
        got = await http.get("/v1/runs", headers={"authorization": f"bearer {KEY}"})
        assert (got.status_code, got.json()) == (200, [])


async def test_a_websocket_gets_nowhere_without_a_key(runs_api):
    said = []

    async def reached(scope, receive, send):
        said.append("reached")

    async def send(message):
        said.append(message["type"])

    runs_api.router = reached
    await runs_api({"type": "websocket", "path": "/", "headers": []}, None, send)
    assert said == ["websocket.close"]


@pytest.fixture
async def asking():
    """A server that refuses what shows no key, and notes what was shown."""
    shown = []

    async def answer(request):
        shown.append(request.headers.get("authorization"))
        status = 200 if shown[-1] == f"Bearer {KEY}" else 401
        return web.json_response([] if status == 200 else {}, status=status)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    server = TestServer(app)
    await server.start_server()
    yield f"http://127.0.0.1:{server.port}", shown
    await server.close()


async def test_the_orchestrator_shows_its_key_to_the_router(asking, monkeypatch):
    url, shown = asking
    monkeypatch.setenv("ROUTER_KEY", KEY)
    request = RolloutRequest(
        session="s",
        messages=[],
        n=1,
        temperature=1.0,
        max_tokens=1,
        seed=1,
        limits=RolloutLimits(total_s=5.0, progress_s=600.0),
    )
    config = OrchestratorConfig(router_url=url, router_key_env="ROUTER_KEY")
    async with RolloutClient(config, model="tiny") as client:
        with pytest.raises(RolloutFailed, match="incomplete"):
            await client.sample(request, lambda *_: None)
    assert shown == [f"Bearer {KEY}"]


def test_an_orchestrator_without_the_key_that_it_shall_show_says_so():
    config = OrchestratorConfig(router_key_env="NO_SUCH_KEY")
    with pytest.raises(InvalidInput, match="NO_SUCH_KEY"):
        RolloutClient(config, model="tiny")


async def test_commands_show_the_key_in_the_environment_and_say_when_one_is_missing(
    asking, monkeypatch
):
    url, shown = asking

    def listed():
        with RunsClient(url) as client:
            return client.runs()

    monkeypatch.delenv("MILLRACE_API_KEY", raising=False)
    with pytest.raises(NotReady, match="MILLRACE_API_KEY"):
        await asyncio.to_thread(listed)
    monkeypatch.setenv("MILLRACE_API_KEY", KEY)
    assert await asyncio.to_thread(listed) == []
    assert shown == [None, f"Bearer {KEY}"]
