"""The router's own port."""

import asyncio
import ssl

import httpx
import pytest
import trustme
from pydantic import ValidationError

from services.protocol.errors import InvalidInput
from services.router.config import ListenConfig, RouterConfig
from services.router.listener.listener import Listener

DEADLINE_S = 300.0
"""That only a hang reaches."""
BODY = {"model": "test-model", "messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture
async def listener(cluster):
    await cluster.start(replicas=1)
    made = Listener(ListenConfig(port=0))
    await made.start(cluster.app)
    yield made
    await made.stop()


async def test_it_answers_as_serve_does(cluster, listener):
    url = f"http://127.0.0.1:{listener.port}/v1/chat/completions"
    mine = (await cluster.http.post(url, json=BODY)).json()
    other = (await cluster.http.post(f"{cluster.url}/v1/chat/completions", json=BODY)).json()
    assert mine["choices"] == other["choices"]


async def test_a_client_that_leaves_ends_its_request_in_the_engine(cluster, listener, fault):
    cluster.replicas[0].always = fault("stall", after=1)
    url = f"http://127.0.0.1:{listener.port}/v1/chat/completions"
    async with cluster.http.stream("POST", url, json=BODY | {"stream": True}) as response:
        await anext(response.aiter_raw())
    await cluster.replicas[0].hung_up.wait()


async def test_whoever_comes_when_all_connections_are_taken_is_sent_away(cluster):
    """Those who are there are served."""
    await cluster.start(replicas=1)
    made = Listener(ListenConfig(port=0, max_connections=1))
    await made.start(cluster.app)
    first, writer = await asyncio.open_connection("127.0.0.1", made.port)
    get = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"
    writer.write(get)
    assert (await asyncio.wait_for(first.readline(), 300)).split()[1] == b"200"
    second, other = await asyncio.open_connection("127.0.0.1", made.port)
    assert (await asyncio.wait_for(second.read(), 300)).split()[1] == b"503"
    writer.write(get)
    await asyncio.wait_for(first.readuntil(b"HTTP/1.1 200"), 300)
    for closing in (writer, other):
        closing.close()
    await made.stop()


async def test_empty_lines_are_no_request_that_is_waited_for(cluster, listener, monkeypatch):
    monkeypatch.setattr("services.router.listener.listener._HEAD_S", 0.05)
    listener._server.config.timeout_keep_alive = 600  # an idle connection ends much later
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
    await asyncio.wait_for(reader.readuntil(b"}"), 300)
    writer.write(b"\r\n")
    assert await asyncio.wait_for(reader.read(), 300) == b""
    writer.close()


async def test_a_port_that_is_taken_is_named_with_a_fix(cluster, listener):
    with pytest.raises(InvalidInput, match=r"listen.port: \d+ is not usable.*already in use.*ss "):
        await Listener(ListenConfig(port=listener.port)).start(cluster.app)


async def test_while_it_drains_clients_are_told_to_connect_again_and_none_is_cut(
    cluster, listener, monkeypatch
):
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    get = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"
    writer.write(get)
    first = await asyncio.wait_for(reader.readuntil(b"}"), DEADLINE_S)
    assert b"connection: close" not in first
    stopping = asyncio.create_task(listener.stop(ending=False))
    await asyncio.wait_for(_refused(listener.port), DEADLINE_S)
    writer.write(get)
    answer = await asyncio.wait_for(reader.read(), DEADLINE_S)
    assert answer.startswith(b"HTTP/1.1 200")
    assert b"connection: close" in answer
    writer.close()
    await asyncio.wait_for(stopping, DEADLINE_S)


async def test_a_router_that_drains_ends_its_open_answers_first(cluster, listener, fault):
    cluster.replicas[0].always = fault("stall", after=1)
    url = f"http://127.0.0.1:{listener.port}/v1/chat/completions"
    async with cluster.http.stream("POST", url, json=BODY | {"stream": True}) as response:
        lines = response.aiter_lines()
        await anext(lines)
        stopping = asyncio.create_task(listener.stop(ending=False))
        await asyncio.wait_for(_refused(listener.port), DEADLINE_S)
        assert not stopping.done()
    await asyncio.wait_for(stopping, DEADLINE_S)


async def test_connections_wait_until_the_router_may_accept(cluster):
    await cluster.start(replicas=1)
    may, made = asyncio.Event(), Listener(ListenConfig(port=0))
    await made.start(cluster.app, may.wait)
    reader, writer = await asyncio.open_connection("127.0.0.1", made.port)
    writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
    assert made.requests == 0
    may.set()
    assert (await asyncio.wait_for(reader.readline(), DEADLINE_S)).split()[1] == b"200"
    writer.close()
    await made.stop()


async def test_a_router_that_ends_before_it_may_accept_frees_its_port(cluster):
    await cluster.start(replicas=1)
    made = Listener(ListenConfig(port=0))
    await made.start(cluster.app, asyncio.Event().wait)
    await asyncio.wait_for(made.stop(ending=False), DEADLINE_S)
    await asyncio.wait_for(_refused(made.port), DEADLINE_S)


async def _refused(port):
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except ConnectionRefusedError:
            return
        writer.close()
        await asyncio.sleep(0)


async def test_a_connection_may_be_idle_for_longer_than_clients_keep_it(cluster, listener):
    """aiohttp's keep one for 15 s: they close it first, and no request meets its end."""
    assert listener._server.config.timeout_keep_alive > 15


async def test_a_certificate_that_cannot_be_read_is_named_at_once(cluster, tmp_path):
    (tmp_path / "none.pem").write_text("none")
    for name in ("absent.pem", "none.pem"):
        config = ListenConfig(port=0, ssl_certfile=str(tmp_path / name))
        with pytest.raises(InvalidInput, match="ssl_certfile"):
            await Listener(config).start(cluster)


async def test_it_speaks_tls_with_a_certificate(cluster, tmp_path):
    await cluster.start(replicas=1)
    authority, both, context = trustme.CA(), str(tmp_path / "tls.pem"), ssl.create_default_context()
    authority.configure_trust(context)
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(both)
    made = Listener(ListenConfig(port=0, ssl_certfile=both))
    await made.start(cluster.app)
    async with httpx.AsyncClient(verify=context) as client:
        answer = await client.get(f"https://127.0.0.1:{made.port}/health")
    assert answer.status_code == 200
    await made.stop()


async def test_after_its_stop_nobody_listens(cluster, listener):
    await listener.stop()
    with pytest.raises(httpx.ConnectError):
        await cluster.http.get(f"http://127.0.0.1:{listener.port}/health")


def test_a_port_that_others_reach_needs_keys_or_a_word_that_none_are_meant():
    listen = {"host": "0.0.0.0", "port": 8001}
    with pytest.raises(ValidationError, match=r"listen.host is 0.0.0.0.*access.api_keys_file"):
        RouterConfig(listen=listen)
    RouterConfig(listen=listen, access={"allow_unauthenticated": True})
    RouterConfig(listen=listen, access={"api_keys_file": "keys.yaml"})
