"""Whoever asks for faults holds their connections: they are undone with them, and leave nothing."""

import asyncio
import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from millrace_tools.chaos import fault_process, node_agent
from millrace_tools.chaos.control_connections import ControlConnections
from millrace_tools.chaos.faults.signals import start_time
from millrace_tools.chaos.node_agent import NodeAgent
from millrace_tools.chaos.processes import ProcessId, TargetProcess
from millrace_tools.chaos.script import Fault, FaultSpec, Target

FREEZE = FaultSpec.model_validate({"at": 0, "fault": "freeze", "target": "rank", "for": 600})


@pytest.fixture
def striking(monkeypatch: pytest.MonkeyPatch) -> NodeAgent:
    monkeypatch.setattr(node_agent, "own_raylet", os.getpid)
    return NodeAgent()


@pytest.fixture
def victim() -> Iterator[TargetProcess]:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        own = ProcessId(process.pid, start_time(process.pid))
        yield TargetProcess(target=Target.RANK, id=own, descendants=())
        process.kill()


def stopped(victim: TargetProcess) -> bool:
    return psutil.Process(victim.id.pid).status() == psutil.STATUS_STOPPED


async def connected(connections: ControlConnections) -> None:
    async with asyncio.timeout(300):
        while not connections.open:  # noqa: ASYNC110  of a socket, which tells nobody else
            await asyncio.sleep(0)


async def test_a_closed_control_connection_undoes_a_fault_and_waits_until_it_is_undone(
    striking: NodeAgent, victim: TargetProcess
) -> None:
    connections = ControlConnections()
    address = await connections.start("127.0.0.1")
    assert striking.inject(FREEZE, victim, control_address=address) == fault_process.DONE
    await connected(connections)
    while not stopped(victim):  # noqa: ASYNC110  the signal is sent, and takes its time to be heeded
        await asyncio.sleep(0)
    assert await connections.close() == 0
    assert not stopped(victim)


async def test_a_fault_that_is_not_undone_in_time_is_counted() -> None:
    connections = ControlConnections(undo_s=0.1)
    with socket.create_connection(await connections.start("127.0.0.1")):
        await connected(connections)
        assert await connections.close() == 1


def test_nothing_is_done_that_could_not_be_undone(
    striking: NodeAgent, victim: TargetProcess
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        nobody = listener.getsockname()
    assert "cannot be reached" in striking.inject(FREEZE, victim, control_address=nobody)
    assert not stopped(victim)


def test_a_fault_that_is_over_leaves_nothing_open(striking: NodeAgent) -> None:
    gone = TargetProcess(target=Target.RANK, id=ProcessId(os.getpid(), -1), descendants=())
    kill = FaultSpec(at=0.0, fault=Fault.KILL, target=Target.RANK)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        before = psutil.Process().num_fds()
        said = striking.inject(kill, gone, control_address=listener.getsockname())
    assert "it has ended already" in said
    assert psutil.Process().num_fds() < before
