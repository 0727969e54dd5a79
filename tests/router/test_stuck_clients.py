"""Clients that take nothing of what they have asked for: they lose their connection's place."""

import asyncio
import contextlib
import socket

import pytest
import uvicorn
from aiohttp import web

from services.router.config import ListenConfig
from services.router.http.answer_endpoint import AnswerEndpoint
from services.router.http.proxy_forwarder import OWN_PORT
from services.router.http_app import RouterNode
from services.router.listener.listener import BoundedConnection, Listener

DEADLINE_S = 300.0
"""That only a hang reaches."""
PIECE = b": %b\n\n" % (b"x" * 2**20)


class StuckClient:
    """Sends one request, and reads nothing."""

    def __init__(self, port, path, method=b"POST", headers=b""):
        self.socket = socket.create_connection(("127.0.0.1", port))
        head = b"%b %b HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n%b\r\n"
        self.socket.sendall(head % (method, path, headers))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()


async def _cut_off(listener, served):
    """Every connection of a listener has ended, and it stops at once, not after `drain_s`."""
    async with asyncio.timeout(DEADLINE_S):
        await served.wait()
        while listener._server.server_state.connections:  # noqa: ASYNC110  it has no event
            await asyncio.sleep(0.01)
        await listener.stop()


async def test_a_stream_that_is_not_read_ends_with_its_connection(cluster, monkeypatch):
    served = asyncio.Event()

    async def endless(self, headers, raw, answer, record):
        await answer.begin_stream({})
        served.set()
        while True:
            await answer.events(PIECE)

    monkeypatch.setattr(AnswerEndpoint, "_serve", endless)
    await cluster.start(replicas=1, client_write_s=0.2)
    made = Listener(ListenConfig(port=0))
    await made.start(cluster.app)
    with StuckClient(made.port, b"/v1/chat/completions"):
        await _cut_off(made, served)


@pytest.mark.parametrize("headers", [b"", b"connection: close\r\n"], ids=["kept", "to be closed"])
async def test_so_does_a_whole_answer_that_nothing_waits_for_any_more(headers):
    served = asyncio.Event()

    async def app(scope, receive, send):
        length = [(b"content-length", b"%d" % (32 * len(PIECE)))]
        await send({"type": "http.response.start", "status": 200, "headers": length})
        await send({"type": "http.response.body", "body": PIECE * 32})
        served.set()

    made = Listener(ListenConfig(port=0), write_s=0.2)
    await made.start(app)
    with StuckClient(made.port, b"/", headers=headers):
        await _cut_off(made, served)


async def test_so_does_an_answer_of_another_application(cluster):
    served = asyncio.Event()

    async def endless(request):
        response = web.StreamResponse()
        await response.prepare(request)
        served.set()
        with contextlib.suppress(ConnectionError):
            while True:
                await response.write(PIECE)

    app = web.Application()
    app.router.add_get("/page/api/events", endless)
    runner = web.AppRunner(app, shutdown_timeout=0.1, handler_cancellation=True)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    node = RouterNode(proxy=f"http://127.0.0.1:{runner.addresses[0][1]}")
    await cluster.start(replicas=1, node=node, listen={"port": 0}, client_write_s=0.2)

    async def marked(scope, receive, send):
        await cluster.app({**scope, OWN_PORT: True}, receive, send)

    made = Listener(ListenConfig(port=0))
    await made.start(marked)
    with StuckClient(made.port, b"/page/api/events", b"GET"):
        await _cut_off(made, served)
    await runner.cleanup()


class Transport:
    """Counts what is still to be taken."""

    def __init__(self):
        self.left, self.aborted = 0, False

    def get_extra_info(self, name):
        return None

    def set_write_buffer_limits(self, *, high, low):
        self.watched_from = high

    def get_write_buffer_size(self):
        return self.left

    def close(self):
        pass

    def abort(self):
        self.aborted = True


class Loop:
    """Timers that a test ends."""

    def __init__(self):
        self.timers = []

    def call_later(self, seconds, call, *args):
        handle = asyncio.TimerHandle(seconds, call, args, asyncio.get_event_loop())
        self.timers.append((seconds, handle))
        return handle

    def next(self, seconds):
        """The newest timer of so many seconds has come to its end."""
        (newest,) = [one for after, one in self.timers if after == seconds][-1:]
        if not newest.cancelled():
            newest._run()


@pytest.fixture
async def connection():
    config = uvicorn.Config(lambda: None, log_config=None)
    config.load()
    loop, transport = Loop(), Transport()
    made = BoundedConnection(config, uvicorn.server.ServerState(), {}, loop, write_s=5.0)
    made.connection_made(transport)
    return made, transport, loop


async def test_a_slow_client_is_not_cut_off_while_it_takes_something(connection):
    protocol, transport, loop = connection
    assert transport.watched_from <= 1
    transport.left = 100
    protocol.pause_writing()
    for left in (90, 89, 3):
        transport.left = left
        loop.next(5.0)
        assert not transport.aborted
    loop.next(5.0)
    assert transport.aborted


@pytest.mark.parametrize("ended", ["taken", "lost"])
async def test_what_is_taken_or_lost_is_not_looked_at_again(connection, ended):
    protocol, transport, loop = connection
    transport.left = 100
    protocol.pause_writing()
    protocol.resume_writing() if ended == "taken" else protocol.connection_lost(OSError())
    loop.next(5.0)
    assert not transport.aborted
