"""The process that keeps the router's port open while routers come and go."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import uuid

import pytest

from services.protocol.errors import InvalidInput
from services.router.config import ListenConfig
from services.router.listener import socket_holder
from services.router.listener.listening_socket import InheritedListeningSocket
from services.router.listener.socket_holder import SocketHolder, listening

DEADLINE_S = 300.0
"""That only a hang reaches."""


@pytest.fixture
def owner():
    """A process with which the holder ends."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


@pytest.fixture
async def ports(owner):
    """Makes routers of one node; all are closed in the end."""
    node, made = uuid.uuid4().hex, []

    def make(uid=node):
        made.append(InheritedListeningSocket(uid, owner=owner.pid))
        return made[-1]

    yield make
    for one in made:
        one.close(ending=True)


def _free():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return ListenConfig(port=probe.getsockname()[1])


async def _asks(config):
    reader, writer = await asyncio.open_connection("127.0.0.1", config.port)
    writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
    return reader, writer


async def _accepted(listener):
    loop = asyncio.get_running_loop()
    connection, _ = await asyncio.wait_for(loop.sock_accept(listener), DEADLINE_S)
    return connection


async def _until_refused(config):
    async with asyncio.timeout(DEADLINE_S):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", config.port)
            except ConnectionRefusedError:
                return
            except ConnectionResetError:  # it was just ending
                continue
            writer.close()
            await asyncio.sleep(0)


async def test_connections_wait_for_the_next_router_when_the_only_one_is_gone(ports):
    config, first = _free(), ports()
    (await first.open(config)).close()
    first.close(ending=False)
    _, writer = await _asks(config)  # there is no router now
    listener = await ports().open(config)
    connection = await _accepted(listener)
    assert connection.recv(3) == b"GET"
    connection.close()
    listener.close()
    writer.close()


async def test_routers_of_a_node_accept_from_the_same_socket(ports):
    config = _free()
    one, other = await asyncio.gather(ports().open(config), ports().open(config))
    assert one.getsockname() == other.getsockname() == ("127.0.0.1", config.port)
    for listener in (one, other):
        _, writer = await _asks(config)
        (await _accepted(listener)).close()
        writer.close()
        listener.close()


async def test_the_port_is_free_once_the_application_has_ended(ports):
    config, router = _free(), ports()
    (await router.open(config)).close()
    router.close(ending=True)
    await _until_refused(config)


async def test_a_router_that_is_left_keeps_the_port_when_another_says_that_all_ends(ports):
    config, leaving, staying = _free(), ports(), ports()
    (await leaving.open(config)).close()
    listener = await staying.open(config)
    leaving.close(ending=True)
    _, writer = await _asks(config)
    (await _accepted(listener)).close()
    writer.close()
    listener.close()


async def test_the_port_is_free_once_the_owner_has_ended(ports, owner):
    config, router = _free(), ports()
    (await router.open(config)).close()
    owner.kill()
    async with asyncio.timeout(DEADLINE_S):
        while _holders(config):
            await asyncio.to_thread(os.sched_yield)
    router.close(ending=False)
    await _until_refused(config)


async def test_a_port_that_another_cluster_of_this_machine_has_is_refused(ports):
    config = _free()
    listener = await ports().open(config)
    with pytest.raises(InvalidInput, match="already in use"):
        await ports(uuid.uuid4().hex).open(config)
    listener.close()


async def test_an_address_that_is_not_here_is_refused(ports):
    with pytest.raises(InvalidInput, match="Cannot assign requested address"):
        await ports().open(ListenConfig(host="192.0.2.1", port=1))


async def test_a_killed_holder_is_replaced_by_the_routers_that_live(ports, owner):
    """So that the next router, which comes before they go, finds the port held."""
    config = _free()
    living = [await ports().open(config), await ports().open(config)]
    (killed,) = _holders(config)
    os.kill(killed, signal.SIGKILL)
    async with asyncio.timeout(DEADLINE_S):
        while _holders(config) in ([killed], []):
            await asyncio.to_thread(os.sched_yield)
    listener = await ports().open(config)
    _, writer = await _asks(config)
    (await _accepted(listener)).close()
    writer.close()
    for one in (listener, *living):
        one.close()


async def test_another_address_at_the_port_of_living_routers_is_refused_with_a_way_out(ports):
    config = _free()
    listener = await ports().open(config)
    with pytest.raises(InvalidInput, match=r"listen on 127\.0\.0\.1 at port"):
        await ports().open(config.model_copy(update={"host": "0.0.0.0"}))
    listener.close()


async def test_only_the_last_router_can_say_that_all_ends(ports):
    config, leaving, dying, third = _free(), ports(), ports(), ports()
    for router in (leaving, dying):
        (await router.open(config)).close()
    leaving.close(ending=True)
    (await third.open(config)).close()  # by then the holder has heard it
    for router in (third, dying):
        router.close(ending=False)
    _, writer = await _asks(config)
    listener = await ports().open(config)
    (await _accepted(listener)).close()
    writer.close()
    listener.close()


def _holders(config):
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline") as file:
                words = file.read().split("\0")
        except OSError:
            continue
        if socket_holder.__file__ in words and str(config.port) in words:
            found.append(int(pid))
    return found


class Clock:
    """A clock that the test moves."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def held():
    """A holder without routers, its clock, and the port."""
    clock, control = Clock(), socket.socket(socket.AF_UNIX)
    control.bind(f"\0{uuid.uuid4().hex}")
    control.listen()
    listener, (owner, end) = listening("127.0.0.1", 0), os.pipe()
    yield SocketHolder(control, listener, owner, clock), clock, listener.getsockname()[1], end
    for one in (control, listener):
        one.close()
    os.close(owner)


async def test_a_client_is_told_when_no_router_comes(held):
    holder, clock, port, end = held
    clock.now = socket_holder.PATIENCE_S + 1
    running = asyncio.create_task(asyncio.to_thread(holder.run))
    reader, writer = await _asks(ListenConfig(port=port))
    answer = await asyncio.wait_for(reader.read(), DEADLINE_S)
    assert answer.startswith(b"HTTP/1.1 503")
    assert b'"type": "no_router"' in answer
    writer.close()
    os.close(end)
    await asyncio.wait_for(running, DEADLINE_S)


async def test_a_holder_without_routers_ends_after_a_while(held):
    holder, clock, _, end = held
    clock.now = socket_holder.ALONE_S + 1
    await asyncio.wait_for(asyncio.to_thread(holder.run), DEADLINE_S)
    os.close(end)
