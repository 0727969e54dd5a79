"""OpenAI-compatible servers outside the cluster, as replicas without a journal."""

import asyncio
import contextlib
import json
from dataclasses import dataclass, field

import openai
import pytest
from aiohttp import web
from pydantic import ValidationError

from services.protocol.errors import InvalidInput, NotReady
from services.protocol.router import CHOICE_HEADER, JOURNAL_HEADER, REPLICA_HEADER, SESSION_HEADER
from services.router.config import RouterConfig
from services.router.http_app import build_http

from .conftest import MODEL as CLUSTER_MODEL

MODEL = "elsewhere"
ASK = [{"role": "user", "content": "hello"}]


@dataclass
class Backend:
    """A server that answers with its own name."""

    name: str
    serves: str = MODEL
    fail: str = ""
    key: str | None = None
    dialect: str = "data: {}\n\n"
    pings: bool = False
    moved_to: str = ""
    bodies: list = field(default_factory=list)
    cookies: list = field(default_factory=list)
    url: str = ""

    async def models(self, request):
        self._check_key(request)
        return web.json_response({"object": "list", "data": [{"id": self.serves}]})

    def _check_key(self, request):
        if self.key and request.headers.get("authorization") != f"Bearer {self.key}":
            raise web.HTTPUnauthorized(text='{"error": {"message": "who are you?"}}')

    async def chat(self, request):
        self._check_key(request)
        self.cookies.append(dict(request.cookies))
        body = await request.json()
        self.bodies.append(body)
        if self.fail == "moved":
            raise web.HTTPTemporaryRedirect(self.moved_to)
        if self.fail == "status":
            raise web.HTTPInternalServerError(text="broken on purpose")
        if self.fail == "refusal":
            error = {"error": {"message": "no such thing", "type": "x", "code": 422}}
            raise web.HTTPUnprocessableEntity(text=json.dumps(error))
        if not body.get("stream"):
            if self.fail == "cut":
                request.transport.abort()
            message = {"role": "assistant", "content": self.name}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            cookie = {"set-cookie": "who=the first client; Path=/"}
            return web.json_response(self._frame("chat.completion", choice), headers=cookie)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        if self.pings:
            with contextlib.suppress(ConnectionResetError):
                while True:
                    await response.write(b": ping\n\n")
                    await asyncio.sleep(0.01)
        for part in ("I am ", self.name):
            delta = {"index": 0, "delta": {"content": part}, "finish_reason": None}
            event = json.dumps(self._frame("chat.completion.chunk", delta))
            await response.write(self.dialect.format(event).encode())
            if self.fail == "cut":
                await asyncio.sleep(0)
                request.transport.abort()
                return response
        await response.write(self.dialect.format("[DONE]").encode())
        return response

    def _frame(self, kind, choice):
        return {"id": "x", "object": kind, "created": 1, "model": self.serves, "choices": [choice]}


@pytest.fixture
async def outside():
    async with contextlib.AsyncExitStack() as stack:

        async def start(*backends):
            for backend in backends:
                app = web.Application()
                app.router.add_get("/v1/models", backend.models)
                app.router.add_post("/v1/chat/completions", backend.chat)
                runner = web.AppRunner(app, shutdown_timeout=0.1)
                await runner.setup()
                stack.push_async_callback(runner.cleanup)
                site = web.TCPSite(runner, "127.0.0.1", 0)
                await site.start()
                backend.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
            return [{"url": backend.url, "model": MODEL} for backend in backends]

        yield start


async def _chat(cluster, model=MODEL, session=None, say="hello", **extra):
    headers = {SESSION_HEADER: session} if session else {}
    return await cluster.client.chat.completions.with_raw_response.create(
        model=model,
        messages=[{"role": "user", "content": say}],
        extra_headers=headers,
        **extra,
    )


async def _text(events):
    return "".join([event.choices[0].delta.content async for event in events])


async def test_requests_that_name_its_model_go_to_the_backend_and_say_so(cluster, outside):
    first = Backend("first")
    await cluster.start(backends=await outside(first))
    raw = await _chat(cluster, temperature=0.3, user="u")
    assert raw.parse().choices[0].message.content == "first"
    assert raw.headers[JOURNAL_HEADER] == "none"
    assert raw.headers[REPLICA_HEADER] == "external-0-127.0.0.1"
    assert first.bodies == [{"model": MODEL, "messages": ASK, "temperature": 0.3, "user": "u"}]
    assert not any(replica.bodies for replica in cluster.replicas)
    ours = await _chat(cluster, model="test-model")
    assert ours.parse().choices[0].message.content == "ahello"
    assert JOURNAL_HEADER not in ours.headers


async def test_a_session_stays_with_its_backend(cluster, outside):
    await cluster.start(backends=await outside(Backend("first"), Backend("second")))
    raws = [await _chat(cluster, session="episode") for _ in range(3)]
    assert len({raw.headers[REPLICA_HEADER] for raw in raws}) == 1
    assert [raw.headers[CHOICE_HEADER] for raw in raws] == ["new", "hit", "hit"]


async def test_streams_pass_through(cluster, outside):
    await cluster.start(backends=await outside(Backend("first")))
    events = (await _chat(cluster, stream=True)).parse()
    assert await _text(events) == "I am first"


async def test_streams_of_other_servers_are_read_and_told_in_one_way(cluster, outside):
    backend = Backend("first", dialect=": ping\r\n\r\nevent: x\r\ndata:{}\r\n\r\n")
    await cluster.start(backends=await outside(backend))
    events = (await _chat(cluster, stream=True)).parse()
    assert await _text(events) == "I am first"


async def test_a_server_that_only_says_that_it_is_there_is_left(cluster, outside):
    bad, good = Backend("bad", pings=True), Backend("good")
    await cluster.start(backends=await outside(bad, good), first_token_s=0.2)
    for number in range(8):  # what begins alike goes to one place
        events = (await _chat(cluster, stream=True, say=f"prompt {number}")).parse()
        assert await _text(events) == "I am good"
    assert bad.bodies


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fail", ["status", "down"])
async def test_a_failure_before_the_first_byte_is_made_good_elsewhere(
    cluster, outside, stream, fail
):
    bad, good = Backend("bad", fail=fail), Backend("good")
    backends = await outside(bad, good)
    if fail == "down":
        backends[0]["url"] = "http://127.0.0.1:1"
    await cluster.start(backends=backends)
    chosen = set()
    for number in range(8):  # what begins alike goes to one place
        raw = await _chat(cluster, stream=stream, say=f"prompt {number}")
        chosen.add(raw.headers[REPLICA_HEADER])
        answer = raw.parse()
        said = await _text(answer) if stream else answer.choices[0].message.content
        assert said == ("I am good" if stream else "good")
    assert "external-0-127.0.0.1" in chosen


async def test_a_failure_after_the_first_byte_is_an_error_that_says_so(cluster, outside):
    await cluster.start(backends=await outside(Backend("bad", fail="cut")))
    events = (await _chat(cluster, stream=True)).parse()
    assert (await anext(events)).choices[0].delta.content == "I am "
    with pytest.raises(openai.APIError, match="an answer with this model cannot be continued"):
        await anext(events)


async def test_a_refusal_of_the_request_is_passed_on(cluster, outside):
    await cluster.start(backends=await outside(Backend("first", fail="refusal")))
    with pytest.raises(openai.UnprocessableEntityError, match="no such thing"):
        await _chat(cluster)


@pytest.mark.parametrize(
    ("extra", "param"),
    [({"return_trajectory": True}, "return_trajectory"), ({"stream_by": "choice"}, "stream_by")],
)
async def test_what_needs_a_journal_is_refused(cluster, outside, extra, param):
    backend = Backend("first")
    await cluster.start(backends=await outside(backend))
    with pytest.raises(openai.BadRequestError, match="without a journal") as refusal:
        await _chat(cluster, stream="stream_by" in extra, extra_body=extra)
    assert refusal.value.param == param
    assert not backend.bodies


async def test_its_calls_leave_nothing_in_a_recorded_session_and_are_counted(cluster, outside):
    await cluster.start(backends=await outside(Backend("first")))
    made = (await cluster.http.post(f"{cluster.url}/v1/sessions")).json()["id"]
    await _chat(cluster, session=made)
    found = (await cluster.http.get(f"{cluster.url}/v1/sessions/{made}")).json()
    assert (found["unrecorded_calls"], found["trajectories"]) == (1, [])


async def test_the_router_shows_each_backend_the_key_that_it_wants(cluster, outside, monkeypatch):
    monkeypatch.setenv("ELSEWHERE_KEY", "the-key")
    backend = Backend("first", key="the-key")
    (settings,) = await outside(backend)
    await cluster.start(backends=[{**settings, "api_key_env": "ELSEWHERE_KEY"}])
    assert (await _chat(cluster)).parse().choices[0].message.content == "first"


async def test_a_refused_key_is_no_error_of_the_client(cluster, outside):
    await cluster.start(backends=await outside(Backend("first", key="the-key")), max_retries=0)
    with pytest.raises(openai.InternalServerError, match="refuses our key") as refusal:
        await _chat(cluster)
    assert refusal.value.status_code == 503


async def test_a_request_goes_nowhere_else_with_the_key_of_its_backend(cluster, outside):
    other = Backend("other")
    await outside(other)
    backend = Backend("first", fail="moved", moved_to=f"{other.url}/v1/chat/completions")
    await cluster.start(backends=await outside(backend), max_retries=0)
    with pytest.raises(openai.InternalServerError, match="307"):
        await _chat(cluster)
    assert not other.bodies


async def test_no_client_gets_the_cookies_of_another(cluster, outside):
    (settings,) = await outside(backend := Backend("first"))
    # Of an address without a name no client keeps cookies.
    named = settings["url"].replace("127.0.0.1", "localhost")
    await cluster.start(backends=[{**settings, "url": named}])
    await _chat(cluster)
    await _chat(cluster)
    assert backend.cookies == [{}, {}]


def test_a_router_without_the_key_of_a_backend_does_not_start():
    backend = {"url": "http://127.0.0.1:1", "model": MODEL, "api_key_env": "NO_SUCH_KEY"}
    with pytest.raises(InvalidInput, match="NO_SUCH_KEY"):
        build_http(RouterConfig(backends=[backend]), bus=None)


@pytest.mark.parametrize("url", ["api.example.com", "http://a/v1", "http://a/", "http://a?b=c"])
def test_an_address_that_cannot_be_meant_is_refused(url):
    with pytest.raises(ValidationError, match="url"):
        RouterConfig(backends=[{"url": url, "model": MODEL}])


async def _until_listed(cluster, *names):
    async with asyncio.timeout(300):
        while True:
            data = (await cluster.http.get(f"{cluster.url}/v1/models")).json()["data"]
            if {model["id"]: model["journal"] for model in data} == dict(names):
                return


async def test_a_backend_is_listed_with_a_mark_while_it_serves_its_model(cluster, outside):
    backend = Backend("first")
    await cluster.start(backends=await outside(backend), probe_s=0.02)
    await _until_listed(cluster, ("test-model", True), (MODEL, False))
    backend.serves = "another"
    await _until_listed(cluster, ("test-model", True))
    backend.serves = MODEL
    await _until_listed(cluster, ("test-model", True), (MODEL, False))
    health = (await cluster.http.get(f"{cluster.url}/health")).json()
    assert (health["leased_replicas"], health["external_backends"]) == (2, 1)


async def test_a_router_of_backends_alone_is_healthy(cluster, outside):
    await cluster.start(replicas=0, backends=await outside(Backend("first")))
    assert (await _chat(cluster)).parse().choices[0].message.content == "first"
    assert (await cluster.http.get(f"{cluster.url}/health")).status_code == 200


@pytest.mark.parametrize("model", ["nowhere", None])
async def test_where_there_are_only_backends_no_other_model_is_waited_for(
    cluster, outside, model, monkeypatch
):
    async def watch(revision, wait_s):
        raise NotReady("there is no weight bus")

    monkeypatch.setattr(cluster.bus, "watch", watch)
    backends = await outside(Backend("first"))
    await cluster.start(replicas=0, backends=backends, lease_wait_s=0)
    body = {"messages": ASK} | ({"model": model} if model else {})
    url = f"{cluster.url}/v1/chat/completions"
    got = await asyncio.wait_for(cluster.http.post(url, json=body), 300)
    assert (got.status_code, got.json()["error"]["param"]) == (404, "model")
    assert f"served: {MODEL}" in got.json()["error"]["message"]


async def test_a_model_of_the_cluster_is_waited_for_while_the_bus_may_still_come(
    cluster, outside, monkeypatch
):
    watch, absent = cluster.bus.watch, asyncio.Event()

    async def miss(revision, wait_s):
        absent.set()
        raise NotReady("the weight bus is not up yet")

    monkeypatch.setattr(cluster.bus, "watch", miss)
    backends = await outside(Backend("first"))
    await cluster.start(replicas=1, backends=backends, lease_wait_s=60)
    await asyncio.wait_for(absent.wait(), 300)
    call = asyncio.create_task(_chat(cluster, model=CLUSTER_MODEL))
    async with asyncio.timeout(300):
        while not len(cluster.reservations.queue):
            assert not call.done(), "it was refused"
            await asyncio.sleep(0.001)
    monkeypatch.setattr(cluster.bus, "watch", watch)
    assert (await asyncio.wait_for(call, 300)).parse().choices[0].message.content
