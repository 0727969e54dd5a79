"""Requests for other applications of Serve that come to the router's own port."""

import asyncio
import contextlib
import json

import httpx
import pytest
from aiohttp import web

from services.router.http_app import RouterNode
from services.router.listener.listening_socket import OwnListeningSocket

KEY = "a-key-that-is-long-enough"
DEADLINE_S = 300.0
"""That only a hang reaches."""


class Serve:
    """Serve's proxy with an orchestrator and a page, and nothing else."""

    def __init__(self):
        self.asked, self.gone = [], asyncio.Event()
        self.routes = {"/": "router", "/v1/runs": "orchestrator", "/page": "page"}

    async def start(self):
        app = web.Application()
        app.router.add_get("/-/routes", self._routes)
        app.router.add_get("/page/api/events", self._stream)
        app.router.add_route("*", "/{path:.*}", self._answer)
        self.runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
        await self.runner.setup()
        site = web.TCPSite(self.runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
        return self

    async def _routes(self, request):
        return web.Response(text=json.dumps(self.routes), content_type="text/plain")

    async def _answer(self, request):
        self.asked.append((request.method, request.raw_path, await request.text()))
        self.headers = request.headers
        headers = {"x-from": "serve", "location": "/page/elsewhere"}
        return web.Response(status=307, text="from Serve", headers=headers)

    async def _stream(self, request):
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"one")
        try:
            await asyncio.Event().wait()
        finally:
            self.gone.set()


class KnownPort(OwnListeningSocket):
    """A free port whose number is known afterwards."""

    async def open(self, config):
        listener = await super().open(config)
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        return listener


@pytest.fixture
async def serve():
    made = await Serve().start()
    yield made
    await made.runner.cleanup()


@pytest.fixture
async def front(cluster, serve):
    """Starts the router; returns where it listens itself, once it knows Serve's routes."""

    async def start(**config):
        port = KnownPort()
        node = RouterNode(port=port, proxy=serve.url)
        await cluster.start(replicas=1, node=node, listen={"port": 0}, **config)
        return port.url

    return start


async def test_a_request_for_another_application_reaches_it_unchanged(cluster, serve, front):
    url = await front()
    target = "/v1/runs/a%20b?x=%2F&y=1"
    answer = await cluster.http.post(url + target, content=b"body", headers={"x-mine": "1"})
    assert serve.asked == [("POST", target, "body")]
    assert (answer.status_code, answer.text, answer.headers["x-from"]) == (
        307,
        "from Serve",
        "serve",
    )
    assert answer.headers["location"] == "/page/elsewhere", "redirects are the client's to follow"


@pytest.mark.parametrize("path", ["/v1/runsaway", "/pages", "/v1/models", "/health"])
async def test_a_path_that_only_begins_alike_is_the_routers(cluster, serve, front, path):
    url = await front()
    await cluster.http.get(url + path)
    assert serve.asked == []


async def test_a_request_that_comes_through_serve_is_not_sent_back_to_it(cluster, serve, front):
    await front()
    answer = await cluster.http.get(f"{cluster.url}/v1/runs")
    assert answer.status_code == 404
    assert serve.asked == []


async def test_a_client_that_leaves_a_stream_ends_it_in_the_application(cluster, serve, front):
    url = await front()
    async with cluster.http.stream("GET", f"{url}/page/api/events") as response:
        assert await anext(response.aiter_raw()) == b"one"
    await asyncio.wait_for(serve.gone.wait(), DEADLINE_S)


async def test_without_serve_the_client_is_told_and_the_router_serves_on(cluster, serve, front):
    url = await front()
    await serve.runner.cleanup()
    answer = await cluster.http.get(f"{url}/v1/runs")
    assert (answer.status_code, answer.json()["error"]["type"]) == (502, "unreachable")
    assert (await cluster.http.get(f"{url}/health")).status_code == 200


async def test_more_streams_than_a_pool_of_connections_has_by_default(cluster, serve, front):
    url = await front()
    async with contextlib.AsyncExitStack() as streams:
        for _ in range(101):
            opened = cluster.http.stream("GET", f"{url}/page/api/events")
            response = await streams.enter_async_context(opened)
            assert await anext(response.aiter_raw()) == b"one"
        assert (await cluster.http.get(f"{url}/v1/runs")).status_code == 307


async def test_trailers_of_a_body_do_not_become_headers(cluster, serve, front):
    url = await front()
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(
        b"POST /v1/runs HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n"
        b"connection: close, x-hop\r\nx-hop: 1\r\n\r\n1\r\na\r\n0\r\nx-late: 1\r\n\r\n"
    )
    assert (await asyncio.wait_for(reader.read(), DEADLINE_S)).startswith(b"HTTP/1.1 307")
    assert serve.asked == [("POST", "/v1/runs", "a")]
    assert not {"x-late", "x-hop"} & {name.lower() for name in serve.headers}
    writer.close()


async def test_a_router_that_drains_does_not_wait_for_a_stream_of_another_application(
    cluster, serve
):
    port, never = KnownPort(), asyncio.Event()

    async def ending():
        return never.is_set()

    node = RouterNode(port=port, proxy=serve.url, ending=ending)
    await cluster.start(replicas=1, node=node, listen={"port": 0})
    async with httpx.AsyncClient(timeout=DEADLINE_S) as client:
        async with client.stream("GET", f"{port.url}/page/api/events") as response:
            pieces = response.aiter_raw()
            assert await anext(pieces) == b"one"
            closing = asyncio.create_task(cluster.close())
            with pytest.raises((httpx.RemoteProtocolError, StopAsyncIteration)):
                await asyncio.wait_for(anext(pieces), DEADLINE_S)
    await asyncio.wait_for(closing, DEADLINE_S)


@pytest.mark.parametrize("access", [{"allow_unauthenticated": True}, {}])
async def test_where_others_reach_a_router_without_keys_it_forwards_nothing(cluster, serve, access):
    port = KnownPort()
    node = RouterNode(port=port, proxy=serve.url)
    host = "0.0.0.0" if access else "127.0.0.1"
    listen = {"host": host, "port": 0}
    await cluster.start(replicas=1, node=node, listen=listen, access=access)
    url = port.url.replace("0.0.0.0", "127.0.0.1")
    answer = await cluster.http.get(f"{url}/v1/runs")
    assert answer.status_code == (404 if access else 307)


async def test_a_body_that_is_too_large_is_refused_before_serve_sees_it(cluster, serve, front):
    url = await front(max_body_bytes=1024)
    answer = await cluster.http.post(f"{url}/v1/runs", content=b"x" * 1025)
    assert answer.status_code == 413
    assert serve.asked == []


async def test_applications_need_the_routers_key_but_for_the_pages_files_and_probes(
    cluster, serve, front, tmp_path
):
    keys = tmp_path / "keys.yaml"
    keys.write_text(json.dumps([{"name": "me", "key": KEY}]))
    url = await front(access={"api_keys_file": str(keys)})
    for path in ("/v1/runs", "/page/api/runs", "/page/staticky", "/v1/runs/../page/"):
        assert await _status(url, path) == b"401", path
    assert serve.asked == []
    for path in ("/page", "/page/", "/page/static/app.js", "/-/healthz"):
        assert (await cluster.http.get(url + path)).status_code == 307, path
        assert (await cluster.http.post(url + path)).status_code == 401, path
    got = await cluster.http.get(f"{url}/v1/runs", headers={"authorization": f"Bearer {KEY}"})
    assert got.status_code == 307


async def test_a_path_does_not_get_around_the_key_by_its_dots(cluster, serve, front, tmp_path):
    keys = tmp_path / "keys.yaml"
    keys.write_text(json.dumps([{"name": "me", "key": KEY}]))
    url = await front(access={"api_keys_file": str(keys)})
    for path in ("/page/static/../api/runs", "/page/static/%2e%2e/api/runs"):
        assert await _status(url, path) == b"307"
        assert serve.asked.pop() == ("GET", path, ""), "as it came, not resolved"


async def _status(url, path):
    """Of a request whose path nobody has resolved."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
    answer = await asyncio.wait_for(reader.read(), DEADLINE_S)
    writer.close()
    return answer.split()[1]
