"""Whoever asks for faults holds their lifelines: they are undone with them, and leave nothing."""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from millrace_tools.chaos import hand, keeper
from millrace_tools.chaos.hand import Hand
from millrace_tools.chaos.lifelines import Lifelines
from millrace_tools.chaos.processes import Life, Victim
from millrace_tools.chaos.script import Deed, Fault, Target
from millrace_tools.chaos.start_time import started

FREEZE = Deed.model_validate({"at": 0, "fault": "freeze", "target": "rank", "for": 600})


@pytest.fixture
def striking(monkeypatch: pytest.MonkeyPatch) -> Hand:
    monkeypatch.setattr(hand, "own_raylet", os.getpid)
    return Hand()


@pytest.fixture
def victim() -> Iterator[Victim]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        life = Life(pid=process.pid, started=started(process.pid))
        yield Victim(target=Target.RANK, life=life, below=(), title="")
        process.kill()


def stopped(victim: Victim) -> bool:
    return psutil.Process(victim.life.pid).status() == psutil.STATUS_STOPPED


async def connected(lifelines: Lifelines) -> None:
    async with asyncio.timeout(60):
        while not lifelines.lasting:  # noqa: ASYNC110  of a socket, which tells nobody else
            await asyncio.sleep(0)


async def test_a_cut_lifeline_undoes_a_fault_and_waits_until_it_is_undone(
    striking: Hand, victim: Victim
) -> None:
    lifelines = Lifelines()
    lifeline = await lifelines.start("127.0.0.1")
    assert striking.strike(FREEZE, victim, lifeline=lifeline) == keeper.DONE
    await connected(lifelines)
    while not stopped(victim):  # noqa: ASYNC110  the signal is sent, and takes its time to be heeded
        await asyncio.sleep(0)
    assert await lifelines.cut() == 0
    assert not stopped(victim)


async def test_a_fault_that_is_not_undone_in_time_is_counted() -> None:
    lifelines = Lifelines(undo_s=0.1)
    with socket.create_connection(await lifelines.start("127.0.0.1")):
        await connected(lifelines)
        assert await lifelines.cut() == 1


def test_nothing_is_done_that_could_not_be_undone(striking: Hand, victim: Victim) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        nobody = listener.getsockname()
    assert "cannot be reached" in striking.strike(FREEZE, victim, lifeline=nobody)
    assert not stopped(victim)


def test_a_fault_that_is_over_leaves_nothing_open(striking: Hand) -> None:
    gone = Victim(target=Target.RANK, life=Life(pid=os.getpid(), started=-1), below=(), title="")
    kill = Deed(at=0.0, fault=Fault.KILL, target=Target.RANK)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        before = psutil.Process().num_fds()
        said = striking.strike(kill, gone, lifeline=listener.getsockname())
    assert "it has ended already" in said
    assert psutil.Process().num_fds() < before
