"""The link between GPUs, with Gloo in the place of NCCL and host memory in that of a GPU."""

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
import torch
from torch.distributed import PrefixStore, ProcessGroupGloo, TCPStore

from services.protocol.weights.weight_bus import Link, Transport
from services.transport import links
from services.transport.gloo import GlooLink, LinkBroken, gloo_options
from services.transport.nccl import NcclLink

from .test_gloo import HOST, Source, make_link, make_source


class Carrier:
    """A process group with the methods that are used of NCCL's, which can be made to hang."""

    def __init__(self, link: Link, member: int) -> None:
        store = TCPStore(HOST, link.store_port, is_master=False, wait_for_workers=False)
        timeout = timedelta(seconds=10)
        place = PrefixStore(f"{link.prefix}/bytes", store)
        self._group = ProcessGroupGloo(place, member, 2, gloo_options(HOST, timeout))
        self.hangs = self.aborted = False

    def broadcast(self, tensors: list[torch.Tensor], options: Any) -> Any:
        if self.hangs:
            return Never()
        return self._group.broadcast(tensors, options)

    def abort(self) -> None:
        self.aborted = True


class Never:
    def is_completed(self) -> bool:
        return False


Ends = tuple[NcclLink, NcclLink, dict[int, Carrier]]


@pytest.fixture
def open_ends() -> Callable[[float], Ends]:
    store = TCPStore(HOST, 0, is_master=True, wait_for_workers=False)

    def open_both(timeout_s: float) -> Ends:
        link = replace(make_link(store, timeout_s=timeout_s), transport=Transport.NCCL)
        carriers: dict[int, Carrier] = {}

        def make_group(link: Link, member: int) -> Carrier:
            carriers[member] = Carrier(link, member)
            return carriers[member]

        made = [
            NcclLink(link, HOST, member, device=torch.device("cpu"), make_group=make_group)
            for member in (0, 1)
        ]
        opening = threading.Thread(target=made[0].open)
        opening.start()
        made[1].open()
        opening.join()
        return made[0], made[1], carriers

    return open_both


def test_every_bucket_goes_through_the_carrier(open_ends: Callable[[float], Ends]) -> None:
    sender, receiver, _ = open_ends(10.0)
    source, sent = make_source(4, [100, 0, 70_000]), []
    sending = threading.Thread(target=lambda: sent.append(sender.send(source, None)))
    sending.start()
    for bucket, expected in enumerate(source.buckets):
        got = receiver.receive_bucket(version=4, bucket=bucket, nbytes=len(expected))
        assert torch.equal(got.payload, expected)
        receiver.release()
    sending.join(300)
    assert sent == [70_100]


def test_a_transfer_that_hangs_is_aborted_at_the_deadline(
    open_ends: Callable[[float], Ends],
) -> None:
    sender, receiver, carriers = open_ends(0.5)
    for carrier in carriers.values():
        carrier.hangs = True
    broken: list[LinkBroken] = []

    def receive() -> None:
        try:
            receiver.receive_bucket(version=1, bucket=0, nbytes=10)
        except LinkBroken as error:
            broken.append(error)

    receiving = threading.Thread(target=receive)
    receiving.start()
    with pytest.raises(LinkBroken, match=r"no transfer in 0\.5 s"):
        sender.send(source_of_one(), None)
    receiving.join(300)
    assert len(broken) == 1
    assert all(carrier.aborted for carrier in carriers.values())
    with pytest.raises(LinkBroken, match="closed"):
        sender.send(source_of_one(), None)


def source_of_one() -> Source:
    return make_source(1, [10])


def test_the_bus_chooses_the_kind_of_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Transport] = []
    monkeypatch.setattr(
        "services.transport.nccl.NcclLink", lambda link, *_: made.append(link.transport)
    )
    store = TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    link = make_link(store)
    links.make_link(replace(link, transport=Transport.NCCL), HOST)
    assert made == [Transport.NCCL]
    for transport in (Transport.GLOO, Transport.SHARED_MEMORY):
        assert type(links.make_link(replace(link, transport=transport), HOST)) is GlooLink
