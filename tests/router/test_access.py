"""Keys and limits at the router's address."""

import asyncio
import json
import logging

import httpx
import openai
import pytest

from services.protocol.errors import InvalidInput
from services.protocol.weights.weight_bus import ReplicaState
from services.router.config import RouterConfig
from services.router.http.batches import BATCH_PATH
from services.router.http.forwarded import PATHS as FORWARDED
from services.router.http.forwarded import TOKENIZER_INFO
from services.router.http_app import build_http
from services.router.request.client_request import PATHS as GENERATING

ALICE, BOB = "alice-has-a-long-key", "bob-has-a-longer-key"
ASK = [{"role": "user", "content": "hello"}]


def _write(path, *entries):
    path.write_text(json.dumps(list(entries)))


@pytest.fixture
def keys(tmp_path):
    path = tmp_path / "keys.yaml"
    _write(path, {"name": "alice", "key": ALICE}, {"name": "bob", "key": BOB})
    return path


async def _start(cluster, keys, **access):
    return await cluster.start(access={"api_keys_file": str(keys), "reread_s": 0.02, **access})


def _chat(cluster, key, **extra):
    client = cluster.client.with_options(api_key=key)
    return client.chat.completions.create(model="test-model", messages=ASK, **extra)


async def test_only_a_known_key_gets_an_answer(cluster, keys):
    await _start(cluster, keys)
    assert (await _chat(cluster, ALICE)).choices[0].message.content == "ahello"
    assert (await _chat(cluster, BOB)).choices[0].message.content == "ahello"
    for wrong in ("nobody-has-this-key", ALICE[:-1], "Bearer"):
        with pytest.raises(openai.AuthenticationError) as refusal:
            await _chat(cluster, wrong)
        assert refusal.value.type == "invalid_api_key"
        assert refusal.value.response.headers["www-authenticate"] == "Bearer"
        assert wrong not in refusal.value.message.replace("Bearer KEY", "")


@pytest.mark.parametrize("header", [{}, {"authorization": ALICE}, {"authorization": "Basic x"}])
async def test_every_path_but_health_needs_a_key(cluster, keys, header):
    await _start(cluster, keys)
    paths = ["/v1/models", "/v1/sessions", "/v1/chat/completions", "/openapi.json", "/nowhere"]
    for path in paths:
        got = await cluster.http.get(cluster.url + path, headers=header)
        assert got.status_code == 401, path
    assert (await cluster.http.get(f"{cluster.url}/health", headers=header)).status_code == 200


async def test_the_public_port_has_no_path_that_controls_anything(cluster, keys):
    """What can be asked of the router are answers, what a replica makes of texts and tokens,
    sessions, health, and where the page is."""
    await _start(cluster, keys)
    paths = {route.path for route in cluster.app.routes}
    documentation = {"/openapi.json", "/docs", "/docs/oauth2-redirect", "/redoc"}
    known = {
        "/",
        "/health",
        "/ping",
        "/version",
        "/load",
        "/invocations",
        "/v1/models",
        "/v1/models/{name:path}",
        "/v1/load",
        "/v1/sessions",
        "/v1/responses/{name}",
        "/v1/responses/{name}/cancel",
        *GENERATING.values(),
        BATCH_PATH,
        *FORWARDED,
        TOKENIZER_INFO,
    }
    known |= {"/v1/sessions/{name}", "/v1/sessions/{name}/finish"}
    known |= {f"/v1/sessions/{name}" for name in ("take", "{name}/rewards", "{name}/interrupt")}
    assert paths - documentation <= known


async def test_a_key_comes_as_anthropics_clients_send_it(cluster, keys):
    await _start(cluster, keys)
    body = {"model": "test-model", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    url = f"{cluster.url}/v1/messages"
    answers = [
        await cluster.http.post(url, json=body, headers=headers)
        for headers in ({"x-api-key": ALICE}, {"x-api-key": "nobody"}, {"x-api-key": ""}, {})
    ]
    assert [answer.status_code for answer in answers] == [200, 401, 401, 401]


async def test_the_rate_of_one_key_is_bounded_and_others_go_on(cluster, tmp_path):
    path = tmp_path / "keys.yaml"
    slow = {"name": "alice", "key": ALICE, "requests_per_s": 0.01, "burst": 2}
    _write(path, slow, {"name": "bob", "key": BOB})
    await _start(cluster, path)
    await _chat(cluster, ALICE)
    await _chat(cluster, ALICE)
    with pytest.raises(openai.RateLimitError, match=r"0\.01 requests a second") as refusal:
        await _chat(cluster, ALICE)
    assert 90 <= int(refusal.value.response.headers["retry-after"]) <= 100
    assert refusal.value.type == "rate_limited"
    await _chat(cluster, BOB)


async def test_the_open_requests_of_one_key_are_bounded(cluster, tmp_path, fault):
    path = tmp_path / "keys.yaml"
    _write(path, {"name": "alice", "key": ALICE, "max_open_requests": 1})
    await _start(cluster, path)
    cluster.faults.append(fault("stall", 2))
    first = asyncio.create_task(_chat(cluster, ALICE))
    replica = await cluster.stalled()
    with pytest.raises(openai.RateLimitError, match="1 open requests"):
        await _chat(cluster, ALICE)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    await asyncio.wait_for(replica.hung_up.wait(), 300)
    async with asyncio.timeout(300):
        while True:
            try:
                await _chat(cluster, ALICE)
                break
            except openai.RateLimitError:
                continue


async def _until_status(cluster, key, status):
    headers = {"authorization": f"Bearer {key}"}
    async with asyncio.timeout(300):
        while True:
            got = await cluster.http.get(f"{cluster.url}/v1/models", headers=headers)
            if got.status_code == status:
                return


async def test_keys_follow_their_file_and_a_bad_file_changes_nothing(cluster, keys, caplog):
    await _start(cluster, keys)
    await _until_status(cluster, ALICE, 200)
    _write(keys, {"name": "bob", "key": BOB})
    await _until_status(cluster, ALICE, 401)
    logger = logging.getLogger("millrace.router")
    logger.addHandler(caplog.handler)
    try:
        keys.write_text(f"- {{name: alice, key: {ALICE}")
        async with asyncio.timeout(300):
            while "api_keys_unusable" not in caplog.messages:
                await _until_status(cluster, BOB, 200)
    finally:
        logger.removeHandler(caplog.handler)
    assert ALICE not in caplog.text
    _write(keys, {"name": "alice", "key": ALICE})
    await _until_status(cluster, ALICE, 200)
    await _until_status(cluster, BOB, 401)


async def test_keys_may_come_from_an_environment_variable(cluster, monkeypatch):
    monkeypatch.setenv("ROUTER_KEYS", f"- {{name: alice, key: {ALICE}}}")
    await cluster.start(access={"api_keys_env": "ROUTER_KEYS"})
    await _chat(cluster, ALICE)
    await _until_status(cluster, BOB, 401)


@pytest.mark.parametrize(
    "access", [{"api_keys_file": "/nowhere/keys.yaml"}, {"api_keys_env": "NO_SUCH_KEYS"}]
)
def test_a_router_whose_keys_cannot_be_read_does_not_start(access):
    with pytest.raises(InvalidInput, match=r"router\.access\.api_keys_"):
        build_http(RouterConfig(access=access), bus=None)


async def test_a_stream_holds_its_place_until_its_end(cluster, tmp_path):
    path = tmp_path / "keys.yaml"
    _write(path, {"name": "alice", "key": ALICE, "max_open_requests": 1})
    await _start(cluster, path)
    for _ in range(3):
        events = await _chat(cluster, ALICE, stream=True)
        assert [event async for event in events]


async def test_a_load_balancer_sees_health_without_a_key(cluster, keys):
    await _start(cluster, keys)
    gone = [
        replica.member(state=ReplicaState.SUSPECT, leased=False) for replica in cluster.replicas
    ]
    await cluster.bus.put(*gone)
    await cluster.until_leased()
    async with httpx.AsyncClient(verify=False) as client:
        assert (await client.get(f"{cluster.url}/health")).status_code == 503
