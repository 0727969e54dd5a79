"""The router's own port."""

import httpx
import pytest
from pydantic import ValidationError

from services.router.config import ListenConfig, RouterConfig
from services.router.listener import Listener

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


async def test_two_routers_of_a_machine_share_the_port(cluster, listener):
    second = Listener(ListenConfig(port=listener.port))
    await second.start(cluster.app)
    await second.stop()


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
