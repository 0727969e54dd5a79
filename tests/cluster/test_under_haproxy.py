"""Two routers under Serve, with HAProxy in place of Serve's own proxy."""

import asyncio
import contextlib
import json
import os
import socket
import sys
import tempfile
from pathlib import Path

import openai
import pytest
import pytest_asyncio
from aiohttp import web

MODEL = "elsewhere"
ASK = [{"role": "user", "content": "hello"}]


class Backend:
    """An OpenAI-compatible server that streams one word, and the next when it is let."""

    def __init__(self):
        self.go_on = asyncio.Event()

    async def models(self, request):
        return web.json_response({"object": "list", "data": [{"id": MODEL}]})

    async def chat(self, request):
        if not (await request.json()).get("stream"):
            message = {"role": "assistant", "content": "one two"}
            return web.json_response(_frame({"message": message, "finish_reason": "stop"}))
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        await response.write(_event("one "))
        await self.go_on.wait()
        await response.write(_event("two") + b"data: [DONE]\n\n")
        return response


def _frame(choice):
    choices = [{"index": 0} | choice]
    return {"id": "x", "object": "chat", "created": 1, "model": MODEL, "choices": choices}


def _event(text):
    frame = _frame({"delta": {"content": text}, "finish_reason": None})
    return f"data: {json.dumps(frame)}\n\n".encode()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def backend():
    backend = Backend()
    app = web.Application()
    app.router.add_get("/v1/models", backend.models)
    app.router.add_post("/v1/chat/completions", backend.chat)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    backend.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
    yield backend
    await runner.cleanup()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(backend):
    port = _free_port()
    settings = {
        "replicas": 2,
        "backends": [{"url": backend.url, "model": MODEL}],
        "probe_s": 0.2,
        "lease_wait_s": 0.5,  # there is no weight bus that could say more
    }
    # A short name: a socket's path may have 107 characters.
    with tempfile.TemporaryDirectory(prefix="haproxy-") as folder:
        routers = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.cluster.two_routers", str(port), json.dumps(settings)),
            cwd=Path(__file__).parents[2],
            env=os.environ | _haproxy(folder),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            async with asyncio.timeout(180):
                while (line := await routers.stdout.readline()) != b"up\n":
                    assert line, "the cluster did not come up"
            url = f"http://127.0.0.1:{port}/v1"
            async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
                await _until_served(client)
                yield client
        finally:
            routers.stdin.close()
            async with asyncio.timeout(60):
                await routers.communicate()


def _haproxy(folder):
    """Its own ports and files, and no patience with requests of yesterday's configuration."""
    return {
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(_free_port()),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(_free_port()),
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": f"{folder}/haproxy.cfg",
        "RAY_SERVE_HAPROXY_SOCKET_PATH": f"{folder}/admin.sock",
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": folder,
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": f"{folder}/server-state",
        "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": "1",
    }


async def _until_served(client):
    """HAProxy listens before it knows the routers, and they before they know the backend."""
    async with asyncio.timeout(60):
        while True:
            with contextlib.suppress(openai.APIConnectionError, openai.InternalServerError):
                if (await client.models.list()).data:
                    return
            await asyncio.sleep(0.1)


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_whole_answer_comes_through(client):
    answer = await client.chat.completions.create(model=MODEL, messages=ASK)
    assert answer.choices[0].message.content == "one two"


async def test_each_piece_of_a_stream_comes_through_as_it_is_sent(client, backend):
    async with asyncio.timeout(60):
        stream = await client.chat.completions.create(model=MODEL, messages=ASK, stream=True)
        first = await anext(stream)
        assert first.choices[0].delta.content == "one "
        backend.go_on.set()
        rest = [event.choices[0].delta.content async for event in stream]
        assert "".join(rest) == "two"


async def test_an_error_keeps_its_status_and_shape(client):
    with pytest.raises(openai.NotFoundError) as caught:
        await client.chat.completions.create(model="nobody", messages=ASK)
    assert caught.value.body["type"] == "NotFoundError"
