"""A replica whose host is cut off, and of which the weight bus says nothing."""

import asyncio
import ctypes
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, aclosing

import pytest

from services.router.config import RouterConfig
from services.router.errors import UpstreamBroken
from services.router.placement.reservation import ReservationRequest
from services.router.placement.reservations import Reservations
from services.router.upstream.upstream import Upstream
from services.side_by_side import running
from tests.router.conftest import Bus, Replica

CLONE_NEWNET = 0x40000000
MOST_S = 60
CONFIG = RouterConfig(silence_s=1, first_token_s=600, between_tokens_s=600)
PROMPT = {"token_ids": [ord("x"), 300], "sampling_params": {}, "stream": True}


def in_a_network_of_its_own(test):
    """Run a coroutine in a thread whose loopback is nobody else's."""
    if os.getuid() or not shutil.which("iptables"):
        pytest.skip("needs root, and iptables: apt-get install iptables")

    def run():
        assert ctypes.CDLL(None).unshare(CLONE_NEWNET) == 0
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        asyncio.run(asyncio.wait_for(test(), MOST_S))

    with ThreadPoolExecutor(1) as thread:
        thread.submit(run).result()


async def lost(fault, *, first: bool) -> UpstreamBroken:
    """How a request ends whose replica is cut off, before it is sent or while it is answered."""
    replica, bus, upstream = Replica("r"), Bus(), Upstream(CONFIG)
    await replica.start()
    await bus.put(replica.member())
    reservations = Reservations(CONFIG, bus)
    ends = AsyncExitStack()
    await ends.enter_async_context(running(reservations.membership.watch(), name="membership"))
    await ends.enter_async_context(upstream.running())

    async def ask():
        with await reservations.reserve(
            ReservationRequest(model=None, session=None, weight=1)
        ) as reservation:
            async with aclosing(upstream.generate(reservation, PROMPT)) as chunks:
                async for _ in chunks:
                    pass

    if first:
        await ask()  # leaves a connection open
        cut(replica.port)
        asking = asyncio.create_task(ask())
    else:
        replica.faults.append(fault("stall", 1))
        asking = asyncio.create_task(ask())
        await replica.stalled.wait()
        cut(replica.port)
    (ended,) = await asyncio.gather(asking, return_exceptions=True)
    await ends.aclose()
    reservations.queue.stop()
    await replica.runner.cleanup()
    return ended


def cut(port):
    drop = ["iptables", "-A", "INPUT", "-p", "tcp", "--sport", str(port), "-j", "DROP"]
    subprocess.run(drop, check=True)


@pytest.mark.parametrize("first", [True, False], ids=["before", "while it answers"])
def test_a_replica_that_is_cut_off_is_lost_though_the_bus_says_nothing(fault, first):
    async def test():
        ended = await lost(fault, first=first)
        assert isinstance(ended, UpstreamBroken), ended
        assert ended.reason == "connection"

    in_a_network_of_its_own(test)
