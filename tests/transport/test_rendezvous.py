"""How the members of a link find each other."""

import socket
import subprocess
import sys
import threading
import time

import pytest
from torch.distributed import TCPStore

from services.transport import rendezvous
from services.transport.rendezvous import Rendezvous

HOST = "127.0.0.1"


@pytest.fixture
def store() -> TCPStore:
    return TCPStore(HOST, 0, is_master=True, wait_for_workers=False)


def test_a_process_has_one_connection_to_a_store_until_that_fails(store: TCPStore) -> None:
    client = rendezvous.connect(HOST, store.port)
    assert rendezvous.connect(HOST, store.port) is client
    rendezvous.disconnect(client)
    again = rendezvous.connect(HOST, store.port)
    assert again is not client
    rendezvous.disconnect(client)
    assert rendezvous.connect(HOST, store.port) is again, "an old failure ended a new connection"


def test_a_member_that_waits_does_not_keep_others_from_meeting(store: TCPStore) -> None:
    client = rendezvous.connect(HOST, store.port)
    waiting = Rendezvous(client, "a", timeout_s=300)
    found: list[bytes] = []
    thread = threading.Thread(target=lambda: found.append(waiting.get("key")))
    thread.start()
    other = Rendezvous(client, "b", timeout_s=300)
    other.set("key", "of b")
    assert other.get("key") == b"of b"
    assert thread.is_alive(), "prefixes are not apart"
    Rendezvous(client, "a", timeout_s=300).set("key", "of a")
    thread.join(300)
    assert found == [b"of a"]


def test_a_key_that_nobody_writes_is_an_error_at_the_deadline(store: TCPStore) -> None:
    client = rendezvous.connect(HOST, store.port)
    with pytest.raises(RuntimeError, match="not written in time"):
        Rendezvous(client, "a", timeout_s=0.05).get("key")


def test_a_store_that_is_silent_costs_every_link_its_own_deadline_alone() -> None:
    """Also those that wait behind another link's attempt."""
    with socket.create_server((HOST, 0)) as silent:
        port, ended = silent.getsockname()[1], []

        def connect() -> None:
            with pytest.raises(RuntimeError):
                rendezvous.connect(HOST, port, timeout_s=1.0)
            ended.append(time.monotonic() - began)

        began = time.monotonic()
        links = [threading.Thread(target=connect) for _ in range(8)]
        for link in links:
            link.start()
        for link in links:
            link.join(300)
    assert max(ended) < 4.0, "they waited one after the other"


ENDS_WHILE_IT_CONNECTS = """
import sys, time
from services.transport import rendezvous

class Slow:
    def __del__(self, sleep=time.sleep):
        sleep(6)

sys.modules["slow"] = Slow()  # which Python forgets when it is about to end
rendezvous._CONNECT_S = 2.0
try:
    rendezvous.connect("127.0.0.1", int(sys.argv[1]), timeout_s=0.01)
except RuntimeError as error:
    print(error)
"""


def test_a_process_that_ends_while_it_connects_ends_well() -> None:
    with socket.socket() as closed:
        closed.bind((HOST, 0))  # without listening, so it refuses connections
        command = [sys.executable, "-c", ENDS_WHILE_IT_CONNECTS, str(closed.getsockname()[1])]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert "does not answer" in done.stdout
    assert done.returncode == 0, done.stderr
