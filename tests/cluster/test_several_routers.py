"""Two routers under Serve, at a port of their own that outlives each of them."""

import asyncio
import contextlib
import json
import sys
import time
from pathlib import Path

import httpx
import openai
import psutil
import pytest
import pytest_asyncio
from aiohttp import web

from millrace_tools.capacity.machine import free_port
from services.router.listener.socket_holder import PATIENCE_S

DEADLINE_S = 240.0
"""That only a hang reaches."""
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


class Routers:
    """Two of them, at one port."""

    def __init__(self, process, settings):
        self._process, self._settings = process, settings
        self.url = f"http://127.0.0.1:{settings['listen']['port']}"

    def client(self, **options):
        options = {"max_retries": 0, "timeout": DEADLINE_S} | options
        return openai.AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", **options)

    async def deploy(self, **changes):
        """Deploy with changed settings, and wait until Serve says that they run."""
        self._settings |= changes
        self._process.stdin.write(f"{json.dumps(self._settings)}\n".encode())
        async with asyncio.timeout(DEADLINE_S):
            while (line := await self._process.stdout.readline()) != b"up\n":
                assert line, "the cluster did not come up"

    def processes(self):
        found = []
        for one in psutil.Process(self._process.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):  # it has just ended
                if " ".join(one.cmdline()).startswith("ray::ServeReplica:router:router"):
                    found.append(one)
        return found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def routers(backend):
    settings = {
        "replicas": 2,
        "listen": {"port": free_port()},
        "backends": [{"url": backend.url, "model": MODEL}],
        "probe_s": 0.2,
        "lease_wait_s": 0.5,  # there is no weight bus that could say more
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.cluster.two_routers"),
        cwd=Path(__file__).parents[2],
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    made = Routers(process, settings)
    try:
        await made.deploy()
        await _until_served(made)
        yield made
    finally:
        process.stdin.close()
        async with asyncio.timeout(DEADLINE_S):
            await process.communicate()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(routers):
    async with routers.client() as client:
        yield client


async def _until_served(routers):
    """Routers listen before they know the backend."""
    async with asyncio.timeout(DEADLINE_S), routers.client() as client:
        while not (await client.models.list()).data:
            pass


pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_a_whole_answer_comes_through(client):
    answer = await client.chat.completions.create(model=MODEL, messages=ASK)
    assert answer.choices[0].message.content == "one two"


async def test_each_piece_of_a_stream_comes_through_as_it_is_sent(client, backend):
    async with asyncio.timeout(300):
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


async def test_without_any_router_calls_wait_for_the_next_one(routers):
    """And no router that dies takes the port with it."""
    killed = routers.processes()
    for process in killed:
        process.kill()
    await asyncio.to_thread(psutil.wait_procs, killed, timeout=DEADLINE_S)
    async with routers.client() as client:  # new connections
        answers = await asyncio.gather(*(_waited_for(routers, client) for _ in range(8)))
    assert answers == ["one two"] * 8


async def test_an_upgrade_loses_no_call(routers):
    """Neither on connections that are kept nor on new ones, nor of a router that just starts:
    the test before this one has killed them, and Serve kills those that it has not seen running.
    """
    over, answered = asyncio.Event(), 0

    async def ask_again_and_again(kept):
        nonlocal answered
        async with routers.client() as client:
            while not over.is_set():
                if kept:
                    assert await _whole(client) == "one two"
                else:
                    async with routers.client() as new:
                        assert await _whole(new) == "one two"
                answered += 1

    before = {process.pid for process in routers.processes()}
    async with asyncio.TaskGroup() as asking:
        for number in range(6):
            asking.create_task(ask_again_and_again(kept=number % 2 == 0))
        await routers.deploy(max_retries=4)
        async with asyncio.timeout(DEADLINE_S):
            while before & {process.pid for process in routers.processes()}:
                await asyncio.to_thread(psutil.wait_procs, routers.processes(), timeout=0.1)
        over.set()
    assert answered > 6


async def test_a_stream_that_is_open_when_routers_are_replaced_comes_to_its_end(routers, backend):
    backend.go_on.clear()
    async with routers.client() as client:
        stream = await client.chat.completions.create(model=MODEL, messages=ASK, stream=True)
        assert (await anext(stream)).choices[0].delta.content == "one "
        before = {process.pid for process in routers.processes()}
        deploying = asyncio.create_task(routers.deploy(max_retries=3))
        async with asyncio.timeout(DEADLINE_S):
            while not {process.pid for process in routers.processes()} - before:
                await asyncio.to_thread(psutil.wait_procs, routers.processes(), timeout=0.1)
        backend.go_on.set()
        rest = [event.choices[0].delta.content async for event in stream]
        await deploying
    assert "".join(rest) == "two"


async def _waited_for(routers, client):
    """An answer; a busy machine may take longer to start a router than calls wait for one."""
    began = time.monotonic()
    try:
        return await _whole(client)
    except openai.InternalServerError as error:
        refused = error
    assert refused.body["type"] == "no_router"
    assert time.monotonic() - began > PATIENCE_S / 2
    async with routers.client(max_retries=40) as patient:
        return await _whole(patient)


async def _whole(client):
    answer = await client.chat.completions.create(model=MODEL, messages=ASK)
    return answer.choices[0].message.content


async def test_what_agents_outside_play_outlives_an_update_of_the_only_router(routers, tmp_path):
    await routers.deploy(replicas=1, sessions_dir=str(tmp_path))
    offer = {"task": {}, "run": "r", "model": MODEL, "max_tokens": 4}
    async with httpx.AsyncClient(base_url=f"{routers.url}/v1", timeout=DEADLINE_S) as client:
        made = await client.post("/sessions", json={"offer": offer})
        session = made.raise_for_status().json()["id"]
        await routers.deploy(max_retries=2)
        found = await client.get(f"/sessions/{session}")
    assert found.raise_for_status().json()["offer"] == "waiting"
