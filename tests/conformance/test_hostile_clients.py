"""Clients that send too much, too little, too slowly, or go at the wrong moment.

Raw sockets against the router's own port, over replicas that answer at once. Whatever a
client does, it gets the right status or is cut off, and nothing of it stays open.
"""

import asyncio
import contextlib
import json

import pytest

from services.open_files import open_files, raise_open_files
from services.router.config import ListenConfig, RouterConfig
from services.router.listener.connection_bound import bounded
from services.router.listener.listener import Listener
from tests.router.conftest import MODEL, Cluster, Fault

PATH = "/v1/chat/completions"
BODY = {"model": MODEL, "messages": [{"role": "user", "content": "hello"}]}
MOST_OPEN, MOST_BYTES = 8, 4096
FLOOD = 1 << 20
MOST_CONNECTIONS = 1000


@pytest.fixture
async def router():
    cluster = Cluster()
    await cluster.start(
        replicas=1, max_open_requests=MOST_OPEN, max_body_bytes=MOST_BYTES, client_read_s=0.3
    )
    listener = Listener(ListenConfig(port=0))
    await listener.start(cluster.app)
    cluster.port = listener.port
    yield cluster
    cluster.replicas[0].always = None
    await _nothing_is_left(cluster, listener)
    await listener.stop()
    await cluster.close()


async def _nothing_is_left(cluster, listener):
    async with asyncio.timeout(300):
        while cluster.reservations.chooser.counts:  # noqa: ASYNC110  (announced to nobody)
            await asyncio.sleep(0.01)
        # As many as may be open at once are: none of those before is counted any more.
        answers = await asyncio.gather(*(_ask(cluster, BODY) for _ in range(MOST_OPEN)))
        assert [status for status, _ in answers] == [200] * MOST_OPEN
        while listener.requests:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def _connected(cluster, **options):
    reader, writer = await asyncio.open_connection("127.0.0.1", cluster.port, **options)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def _head(**headers):
    lines = [f"POST {PATH} HTTP/1.1", "host: router", "content-type: application/json"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode()


async def _status(reader):
    line = await asyncio.wait_for(reader.readline(), 300)
    return int(line.split()[1]) if line else None


async def _ask(cluster, body):
    """Status and body of one request on a connection of its own."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    async with _connected(cluster) as (reader, writer):
        writer.write(_head(content_length=len(raw), connection="close") + raw)
        status = await _status(reader)
        return status, (await reader.read()).partition(b"\r\n\r\n")[2]


MALFORMED = {
    "nothing": b"",
    "no JSON": b"{",
    "not UTF-8": b'{"model": "\xff\xfe"}',
    "deep": b"[" * 2000 + b"]" * 2000,
    "a number too long to read": b"9" * 4000,
    "null bytes": b"\x00" * 100,
    "a list": b"[1]",
}


@pytest.mark.parametrize("name", MALFORMED)
async def test_a_malformed_body_is_refused_in_openais_shape(router, name):
    status, body = await _ask(router, MALFORMED[name])
    assert status == 400
    error = json.loads(body)["error"]
    assert error["message"]
    assert error["code"] == 400


async def test_a_body_that_says_that_it_is_too_large_is_refused(router):
    status, body = await _ask(router, b" " * (MOST_BYTES + 1))
    assert (status, json.loads(body)["error"]["type"]) == (413, "body_too_large")


async def test_a_body_that_grows_too_large_is_refused(router):
    async with _connected(router) as (reader, writer):
        writer.write(_head(transfer_encoding="chunked"))
        with contextlib.suppress(ConnectionError):
            for _ in range(8):
                writer.write(b"400\r\n" + b" " * 1024 + b"\r\n")
                await writer.drain()
        assert await _status(reader) == 413


@pytest.mark.parametrize("sent", [b"", b'{"model": '], ids=["none of it", "a part"])
async def test_a_body_that_does_not_come_is_not_waited_for_long(router, sent):
    async with _connected(router) as (reader, writer):
        writer.write(_head(content_length=100) + sent)
        assert await _status(reader) == 408


async def test_a_client_that_goes_before_its_body_has_come_leaves_nothing(router):
    for sent in (b"", b"{"):
        async with _connected(router) as (_, writer):
            writer.write(_head(content_length=100) + sent)
            await writer.drain()


@pytest.mark.parametrize("many", [True, False], ids=["many headers", "one header without end"])
async def test_a_flood_of_headers_is_cut_off(router, many):
    line = b"x-flood: " + b"a" * 1000 + (b"\r\n" if many else b"")
    async with _connected(router) as (reader, writer):
        writer.write(_head()[:-2] + b"x-flood: ")
        with contextlib.suppress(ConnectionError):
            for _ in range(FLOOD // len(line)):
                writer.write(line)
                await writer.drain()
            assert await _status(reader) == 400


async def test_headers_that_do_not_come_are_not_waited_for_long(router, monkeypatch):
    monkeypatch.setattr("services.router.listener.listener._HEAD_S", 0.2)
    for sent in (b"", b"POST /v1/chat", _head()[:-2]):
        async with _connected(router) as (reader, writer):
            writer.write(sent)
            assert await asyncio.wait_for(reader.read(), 300) == b""


async def test_what_is_no_http_is_answered_with_400(router):
    async with _connected(router) as (reader, writer):
        writer.write(b"\x16\x03\x01\x02\x00 hello\r\n\r\n")
        assert await _status(reader) == 400


async def test_a_client_that_reads_byte_by_byte_gets_everything(router):
    body = json.dumps({**BODY, "stream": True}).encode()
    async with _connected(router, limit=1) as (reader, writer):
        writer.write(_head(content_length=len(body), connection="close") + body)
        read = b""
        while byte := await asyncio.wait_for(reader.read(1), 300):
            read += byte
    assert b"data: [DONE]\n\n" in read


async def test_a_client_that_sends_byte_by_byte_is_answered(router):
    body = json.dumps(BODY).encode()
    async with _connected(router) as (reader, writer):
        for byte in _head(content_length=len(body)) + body:
            writer.write(bytes([byte]))
            await writer.drain()
        assert await _status(reader) == 200


async def test_a_socket_that_is_closed_for_writing_leaves_nothing(router):
    router.replicas[0].always = Fault("stall", after=1)
    body = json.dumps({**BODY, "stream": True}).encode()
    async with _connected(router) as (reader, writer):
        writer.write(_head(content_length=len(body)) + body)
        await asyncio.wait_for(router.replicas[0].stalled.wait(), 300)
        writer.write_eof()
        # Who cannot say any more that it is still there counts as gone.
        await asyncio.wait_for(reader.read(), 300)
        await asyncio.wait_for(router.replicas[0].hung_up.wait(), 300)


async def test_many_open_connections_take_nothing_from_those_who_ask(router):
    raise_open_files()
    # Both ends of each are this process's, as are the router's own to its replicas.
    room = bounded(RouterConfig(max_connections=2 * MOST_CONNECTIONS), open_files())
    connections = room.max_connections // 2
    async with contextlib.AsyncExitStack() as stack:
        for number in range(connections):
            _, writer = await stack.enter_async_context(_connected(router))
            if number % 2:
                writer.write(_head()[:20])
        assert (await _ask(router, BODY))[0] == 200


async def test_more_open_requests_than_allowed_are_told_to_come_again(router):
    router.replicas[0].always = Fault("stall", after=1)
    body = json.dumps({**BODY, "stream": True}).encode()
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(MOST_OPEN):
            reader, writer = await stack.enter_async_context(_connected(router))
            writer.write(_head(content_length=len(body)) + body)
            assert await _status(reader) == 200
        status, refusal = await _ask(router, BODY)
        assert (status, json.loads(refusal)["error"]["type"]) == (429, "too_many_requests")
