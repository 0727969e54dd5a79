"""The router and the limit of open files: what it allows, and what becomes of the rest."""

import contextlib
import errno
import json
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from services.router.config import RouterConfig
from services.router.listener.connection_bound import RefusedConnections, bounded

DROWNED = Path(__file__).with_name("drowned_listener.py")
OPEN_FILES, CONNECTIONS, ANSWER_S = 512, 700, 60


@pytest.mark.parametrize(
    ("open_files", "most"), [(1 << 20, 8192), (4096, 1920), (1024, 384), (256, 64), (1, 1)]
)
def test_connections_are_no_more_than_there_are_descriptors_for(open_files, most):
    config = bounded(RouterConfig(listen={"port": 0}), open_files)
    assert (config.max_connections, config.listen.max_connections) == (most, most)
    assert config.max_open_requests == min(most, 4096)


def test_a_bound_that_fits_stays_as_it_was_set():
    config = RouterConfig(listen={"port": 0, "max_connections": 10}, max_connections=20)
    assert bounded(config, 1024).listen.max_connections == 10
    assert bounded(config, 1024).max_connections == 20


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_flood_is_refused_in_openais_shape_and_those_who_are_there_are_served(loop):
    command = [sys.executable, str(DROWNED), loop, str(OPEN_FILES)]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, text=True, **pipes) as server, contextlib.ExitStack() as ends:
        port, most = json.loads(server.stdout.readline())
        opened = [ends.enter_context(_connection(port)) for _ in range(CONNECTIONS)]
        refusals = [_everything(one) for one in opened[most:]]
        first_status = _status(opened[0])
        for one in opened:
            one.close()
        served_again = _is_served_again(port)
        counts, log = server.communicate(timeout=ANSWER_S)
    assert most == 128
    heads, bodies = zip(*(answer.split(b"\r\n\r\n") for answer in refusals), strict=True)
    assert all(head.startswith(b"HTTP/1.1 503 ") for head in heads)
    assert json.loads(bodies[0])["error"]["type"] == "too_many_connections"
    assert first_status == b"200"
    assert served_again
    counted = json.loads(counts)
    assert counted["bound"] >= CONNECTIONS - most
    assert set(counted) == {"bound"}, "accept() never ran out of descriptors"
    assert log.count("connections_refused") == 1, log


def _connection(port):
    return socket.create_connection(("127.0.0.1", port), ANSWER_S)


def _everything(connection):
    with connection.makefile("rb") as file:
        return file.read()


def _status(connection):
    connection.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
    return connection.recv(65536)[9:12]


def _is_served_again(port):
    """It may see a little later than we that the others have left."""
    deadline = time.monotonic() + ANSWER_S
    while time.monotonic() < deadline:
        with contextlib.suppress(ConnectionError), _connection(port) as later:
            if _status(later) == b"200":
                return True
    return False


class _Loop:
    """As much of an event loop as there is to an exception handler."""

    def __init__(self):
        self.handler, self.left = None, []

    def get_exception_handler(self):
        return self.handler

    def set_exception_handler(self, handler):
        self.handler = handler

    def default_exception_handler(self, context):
        self.left.append(context)


def test_a_loop_without_descriptors_says_so_once_a_minute(caplog):
    now = 0.0
    refused, loop = RefusedConnections(clock=lambda: now), _Loop()
    refused.watch(loop)
    for second in range(121):
        now = float(second)
        for _ in range(16):
            loop.handler(loop, {"exception": OSError(errno.EMFILE, "Too many open files")})
    logged = [(record.fields["reason"], record.fields["connections"]) for record in caplog.records]
    assert logged == [("no_descriptor", 1), ("no_descriptor", 960), ("no_descriptor", 960)]


def test_other_errors_of_a_loop_go_where_they_went_before():
    refused, loop = RefusedConnections(), _Loop()
    refused.watch(loop)
    loop.handler(loop, {"exception": OSError(errno.EPIPE, "Broken pipe")})
    loop.handler(loop, {"message": "a task that nobody awaited"})
    assert len(loop.left) == 2
    seen = []
    loop.handler = lambda _, context: seen.append(context)
    refused.watch(loop)
    loop.handler(loop, {"message": "again"})
    assert seen == [{"message": "again"}]
