"""The link between GPUs over a fake of CUDA and NCCL."""

import asyncio
import contextlib
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.distributed import TCPStore

from services.protocol.weights.weight_bus import Link, Transport
from services.transport import links, nccl
from services.transport.gloo import GlooLink, LinkBroken
from services.transport.nccl import NcclLink
from services.transport.receiver import VersionReceiver
from services.transport.staged_version import StageFailed

from .fake_nccl import FakeCuda, FakeNccl
from .sender import Sender
from .test_gloo import HOST, Source, make_link, make_source

WAIT_S = 300.0


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeNccl:
    cuda = FakeCuda()
    made = FakeNccl(cuda)
    monkeypatch.setenv("TORCH_NCCL_NONBLOCKING_TIMEOUT", "")  # so that it is put back
    monkeypatch.delenv("TORCH_NCCL_NONBLOCKING_TIMEOUT")
    monkeypatch.setattr(torch, "cuda", cuda)
    monkeypatch.setattr(nccl, "dist", made)
    monkeypatch.setattr(nccl, "empty_bytes", cuda.empty_bytes)
    return made


@pytest.fixture
def link() -> Iterator[Link]:
    """From one trainer rank to an engine of two workers."""
    store = TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    yield replace(make_link(store, timeout_s=30.0), world_size=3, transport=Transport.NCCL)
    del store


def send_and_receive(link: Link, gpus: tuple[int, ...], sizes: list[int]) -> list[Any]:
    """What each worker has received, or why it has not; every member is a thread, as it is."""
    source, found = make_source(4, sizes), [None] * len(gpus)

    def member(number: int) -> None:
        end = NcclLink(link, HOST, number, device=torch.device("cuda", gpus[number]))
        try:
            end.open()
            if number == 0:
                found[0] = end.send(source, None)
                return
            found[number] = []
            end.ask(4, 0)
            for bucket, size in enumerate(sizes):
                got = end.receive_bucket(version=4, bucket=bucket, nbytes=size)
                found[number].append(bool(torch.equal(got.payload, source.buckets[bucket])))
        except RuntimeError as error:
            found[number] = error

    threads = [threading.Thread(target=member, args=(one,)) for one in range(len(gpus))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()
    return found


def test_every_worker_of_an_engine_receives_on_its_own_gpu(fake: FakeNccl, link: Link) -> None:
    sizes = [100, 0, 70_000]
    assert send_and_receive(link, (0, 0, 1), sizes) == [70_100, [True] * 3, [True] * 3]
    assert {group.connects_for for group in fake.made} == {"30"}, "the link's deadline"


def test_two_workers_on_one_gpu_are_refused_and_the_link_is_broken(
    fake: FakeNccl, link: Link
) -> None:
    sender, *workers = send_and_receive(link, (0, 0, 0), [100])
    assert isinstance(sender, LinkBroken)
    for one in (sender, *workers):
        assert "Duplicate GPU" in str(one)


def test_a_transfer_that_hangs_breaks_the_link_and_ends_no_process(
    fake: FakeNccl, link: Link
) -> None:
    fake.hangs = True
    short = replace(link, timeout_s=0.5)
    for one in send_and_receive(short, (0, 0, 1), [100]):
        assert "no transfer in 0.5 s" in str(one)
    assert all(group.aborted.is_set() for group in fake.made)
    assert all(group.options._timeout.days >= 1 for group in fake.made)
    assert fake.ended == []


async def test_a_failure_costs_one_attempt_which_tcp_makes_good_and_the_next_version_takes_nccl(
    fake: FakeNccl, sender: Sender
) -> None:
    """Both real ends, as the bus orders them: see `test_route` for its side."""
    receiver = VersionReceiver(HOST, device=torch.device("cuda", 1))

    async def push(version: int, attempt: str, transport: Transport) -> None:
        tensors = {f"t{index}": torch.full((8,), float(version)) for index in range(4)}
        order, payloads = sender.order(tensors, version, attempt, target_bytes=16)
        given = tuple(replace(one, transport=transport, timeout_s=1.0) for one in order.links)
        ends = []
        for link, buckets in zip(given, payloads, strict=True):
            end = links.make_link(link, HOST, 0, torch.device("cuda", link.trainer_rank))
            args = (end, Source(version, tuple(buckets)))
            ends.append(threading.Thread(target=_send, args=args))
            ends[-1].start()
        try:
            async with asyncio.timeout(WAIT_S):
                await receiver.receive(replace(order, links=given))
        finally:
            for one in ends:
                await asyncio.to_thread(one.join, WAIT_S)

    await push(1, "a", Transport.NCCL)
    receiver.keep()
    fake.hangs = True
    with pytest.raises(StageFailed, match=r"no transfer in 1 s|Connection closed"):
        await push(2, "b", Transport.NCCL)
    made = len(fake.made)
    await push(2, "c", Transport.GLOO)
    receiver.keep()
    assert len(fake.made) == made, "TCP needs no communicator"
    fake.hangs = False
    await push(3, "d", Transport.NCCL)
    assert len(fake.made) > made
    assert (fake.ended, len({one.options._timeout for one in fake.made})) == ([], 1)


def _send(end: GlooLink, source: Source) -> None:
    with contextlib.suppress(LinkBroken):
        end.open()
        end.send(source, None)
    end.close()


def test_groups_of_torchs_own_keep_their_watchdog(
    fake: FakeNccl, link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", raising=False)
    monkeypatch.setenv("TORCH_NCCL_ENABLE_MONITORING", "1")
    group = nccl.nccl_group(link, 0)
    assert (group._watches, group.options.config.blocking) == (False, 0)
    assert "TORCH_NCCL_ASYNC_ERROR_HANDLING" not in os.environ
    assert os.environ["TORCH_NCCL_ENABLE_MONITORING"] == "1"
    assert fake.ProcessGroupNCCL(None, 0, 2, group.options)._watches


def test_the_fake_ends_a_process_whose_watchdog_was_left_on(
    fake: FakeNccl, link: Link, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nccl, "_NO_WATCHDOG", {})
    monkeypatch.setattr(nccl, "_FOR_EVER", nccl.timedelta(seconds=0.05))
    fake.hangs = True
    send_and_receive(replace(link, timeout_s=0.5), (0, 0, 1), [100])
    assert sorted(fake.ended) == [0, 1, 2]


def test_the_bus_chooses_the_kind_of_an_end(monkeypatch: pytest.MonkeyPatch, link: Link) -> None:
    made: list[Any] = []
    monkeypatch.setattr(nccl, "NcclLink", lambda *given, device: made.append(device))
    gpu = torch.device("cuda", 3)
    links.make_link(link, HOST, 1, gpu)
    assert made == [gpu]
    with pytest.raises(ValueError, match="NCCL passes bytes between GPUs, and this is cpu"):
        links.make_link(link, HOST, 1, torch.device("cpu"))
    for transport in (Transport.GLOO, Transport.SHARED_MEMORY):
        assert type(links.make_link(replace(link, transport=transport), HOST)) is GlooLink
