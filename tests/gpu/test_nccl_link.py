"""A weight link over real NCCL, as far as one GPU goes: no two of its members can have one."""

import multiprocessing
import os
import time
from dataclasses import replace
from multiprocessing.queues import Queue
from typing import Any

import pytest
import torch
from torch.distributed import TCPStore

from services.protocol.weights.weight_bus import Link, Transport
from services.transport.gloo import GlooLink, LinkBroken
from services.transport.nccl import NcclLink
from tests.transport.test_gloo import HOST, make_link, make_source

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

SIZES = [100, 0, 64 << 20]
TIMEOUT_S = 10.0
AFTERWARDS_S = 5.0
"""How long the sender's process lives on before its GPU is tried again."""


def member(link: Link, number: int, over_nccl: bool, told: "Queue[Any]") -> None:
    """Send or receive, and put the result into `told`; the sender later computes on its GPU."""
    device = torch.device("cuda", 0)
    end = NcclLink(link, HOST, number, device=device) if over_nccl else GlooLink(link, HOST, number)
    began = time.monotonic()
    try:
        end.open()
        if number == 0:
            found: Any = end.send(make_source(4, SIZES), None)
        else:
            end.ask(4, 0)
            found = end.receive_bucket(version=4, bucket=0, nbytes=SIZES[0]).kind.name
    except RuntimeError as error:
        found = f"{type(error).__name__}: {error}"
    told.put((number, found, time.monotonic() - began))
    if number == 0:
        time.sleep(AFTERWARDS_S)
        told.put((number, torch.ones(3, device=device).sum().item(), 0.0))
        told.close()
        told.join_thread()
        os._exit(0)  # exit handlers of CUDA and NCCL are not under test


def run(over_nccl: tuple[bool, ...]) -> tuple[dict[int, Any], float, int | None]:
    """What each member tells, how long the sender took, and how its process ended."""
    store = TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    link = replace(
        make_link(store, timeout_s=TIMEOUT_S), world_size=len(over_nccl), transport=Transport.NCCL
    )
    spawn = multiprocessing.get_context("spawn")
    told: Queue[Any] = spawn.Queue()
    members = [
        spawn.Process(target=member, args=(link, number, nccl, told), daemon=True)
        for number, nccl in enumerate(over_nccl)
    ]
    for one in members:
        one.start()
    found, took = dict[int, Any](), 0.0
    for _ in members:
        number, what, seconds = told.get(timeout=120)
        found[number], took = what, seconds if number == 0 else took
    print(found, round(took, 2))
    assert told.get(timeout=120)[1] == 3.0, "the sender's GPU is of use afterwards"
    members[0].join(60)
    return found, took, members[0].exitcode


@pytest.mark.timeout(300)
def test_bytes_pass_through_the_gpu() -> None:
    found, _, code = run((True,))
    assert found == {0: sum(SIZES)}
    assert code == 0


@pytest.mark.timeout(300)
def test_two_members_on_one_gpu_break_the_link_and_end_no_process() -> None:
    found, took, code = run((True, True))
    assert found[0].startswith(LinkBroken.__name__)
    assert "Duplicate GPU" in found[0]
    assert took < 3 * TIMEOUT_S
    assert code == 0


@pytest.mark.timeout(300)
def test_a_member_that_never_connects_costs_the_links_deadline_and_ends_no_process() -> None:
    found, took, code = run((True, False))
    assert found[0].startswith(LinkBroken.__name__)
    assert TIMEOUT_S <= took < 3 * TIMEOUT_S
    assert code == 0
