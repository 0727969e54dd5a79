"""A keeper on a machine that it has cut off, and the command that asked for it on another."""

import asyncio
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace_tools.chaos import keeper
from millrace_tools.chaos.lifelines import Lifelines
from tests.operations.network import Machine, Network, why_not

pytestmark = [
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
    pytest.mark.timeout(300),
]

ROOT = Path(__file__).parents[2]
WAIT_S = 60.0
HAND = """
import socket, sys
from millrace_tools.chaos.hand import _begun
line = socket.create_connection((sys.argv[1], int(sys.argv[2])))
print(_begun([sys.executable, "-m", *sys.argv[3:]], line))
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
    """Start the keeper of a cut; what it says."""
    order = json.dumps({"fault": "cut", "seconds": 3600.0, "lives": []})
    host, port = address
    hand = [sys.executable, "-c", HAND, host, str(port), keeper.__name__, order]
    started = away.command(*hand)
    done = subprocess.run(started, cwd=ROOT, stdout=subprocess.PIPE, timeout=WAIT_S, check=True)
    return done.stdout.decode().strip()


async def test_a_cut_lets_its_lifeline_through_and_is_healed_with_it(network: Network) -> None:
    here, away = network.machines["here"], network.machines["away"]
    assert reaches(here, away)
    lifelines = Lifelines(undo_s=WAIT_S)
    with here.network():
        address = await lifelines.start(here.address)
    # Beside the loop, which takes the lifeline's connection meanwhile.
    assert await asyncio.to_thread(begun, away, address) == keeper.DONE
    until(here, away, reached=False)
    assert await lifelines.cut() == 0, "the keeper's end came back through its own cut"
    assert reaches(here, away)
