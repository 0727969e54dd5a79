"""A fault process on a machine that it has cut off, and its command on another."""

import asyncio
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace_tools.chaos import fault_process
from millrace_tools.chaos.control_connections import ControlConnections
from tests.operations.network import Machine, Network, why_not

pytestmark = [
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
    pytest.mark.timeout(300),
]

ROOT = Path(__file__).parents[2]
WAIT_S = 60.0
AGENT = """
import socket, sys
from millrace_tools.chaos.node_agent import start_fault_process
line = socket.create_connection((sys.argv[1], int(sys.argv[2])))
print(start_fault_process([sys.executable, "-m", *sys.argv[3:]], line))
"""


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    with Network(["here", "away"]) as network:
        yield network


def reaches(here: Machine, away: Machine) -> bool:
    """Whether a packet comes back: nobody listens, which the other machine says if it can."""
    with here.network(), pytest.raises((ConnectionRefusedError, TimeoutError)) as refused:
        socket.create_connection((away.address, 9), 1.0)
    return refused.errisinstance(ConnectionRefusedError)


def until(here: Machine, away: Machine, *, reached: bool) -> None:
    deadline = time.monotonic() + WAIT_S
    while reaches(here, away) != reached:
        assert time.monotonic() < deadline


def begun(away: Machine, address: tuple[str, int]) -> str:
    """Start the fault process of a cut; returns its answer."""
    order = json.dumps({"fault": "cut", "seconds": 3600.0, "processes": []})
    host, port = address
    agent = [sys.executable, "-c", AGENT, host, str(port), fault_process.__name__, order]
    started = away.command(*agent)
    done = subprocess.run(started, cwd=ROOT, stdout=subprocess.PIPE, timeout=WAIT_S, check=True)
    return done.stdout.decode().strip()


async def test_a_cut_lets_its_control_connection_through_and_is_healed_with_it(
    network: Network,
) -> None:
    here, away = network.machines["here"], network.machines["away"]
    assert reaches(here, away)
    connections = ControlConnections(undo_s=WAIT_S)
    with here.network():
        address = await connections.start(here.address)
    # Beside the loop, which takes the control connection meanwhile.
    assert await asyncio.to_thread(begun, away, address) == fault_process.DONE
    until(here, away, reached=False)
    assert await connections.close() == 0, (
        "the end of the fault process came back through its own cut"
    )
    assert reaches(here, away)
