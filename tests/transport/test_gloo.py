"""Buckets over real Gloo links."""

import hashlib
import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.distributed import BroadcastOptions, PrefixStore, ProcessGroupGloo, TCPStore

from services.protocol.weights.weight_bus import Link
from services.transport.bucket import FIELDS, MAGIC, Encoded, Kind, whole
from services.transport.gloo import GlooLink, LinkBroken, gloo_options
from services.transport.network_interfaces import network_interfaces

HOST = "127.0.0.1"


@pytest.fixture
def store() -> TCPStore:
    return TCPStore(HOST, 0, is_master=True, wait_for_workers=False)


def make_link(store: TCPStore, prefix: str = "r/1", timeout_s: float = 300.0) -> Link:
    return Link(
        replica_id="r",
        trainer_rank=0,
        store_host=HOST,
        store_port=store.port,
        prefix=prefix,
        timeout_s=timeout_s,
    )


class Source:
    """Random buckets, always sent whole."""

    def __init__(self, version: int, buckets: tuple[torch.Tensor, ...]) -> None:
        self.version, self.buckets, self.bucket_count = version, buckets, len(buckets)
        self.digests = [hashlib.sha256(bucket.numpy().tobytes()).hexdigest() for bucket in buckets]

    def encoded(self, bucket: int, base: int | None) -> Encoded:
        return whole(self.buckets[bucket])


def make_source(version: int, sizes: list[int]) -> Source:
    generator = torch.Generator().manual_seed(version)
    buckets = tuple(
        torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator) for size in sizes
    )
    return Source(version, buckets)


class Receiver(threading.Thread):
    """The other end, written from the protocol's description alone."""

    def __init__(self, store: TCPStore, link: Link, versions: dict[int, int]) -> None:
        """`versions` has the number of buckets of each."""
        super().__init__(daemon=True)
        self._store, self._link, self._versions = store, link, versions
        self.headers: list[list[int]] = []
        self.digests: list[str] = []

    def run(self) -> None:
        timeout = timedelta(seconds=self._link.timeout_s)
        store = PrefixStore(self._link.prefix, self._store)
        self.group = group = ProcessGroupGloo(store, 1, 2, gloo_options(HOST, timeout))
        for version, buckets in self._versions.items():
            self._pass(group, torch.tensor([MAGIC, version, 0]), timeout, source=1)
            self._take(group, buckets, timeout)

    def _take(self, group: Any, buckets: int, timeout: timedelta) -> None:
        for _ in range(buckets):
            header = torch.empty(FIELDS, dtype=torch.int64)
            self._pass(group, header, timeout)
            payload = torch.empty(int(header[5]), dtype=torch.uint8)
            if payload.numel():
                self._pass(group, payload, timeout)
            self.headers.append(header.tolist())
            self.digests.append(hashlib.sha256(payload.numpy().tobytes()).hexdigest())

    def _pass(self, group: Any, tensor: torch.Tensor, timeout: timedelta, source: int = 0) -> None:
        options = BroadcastOptions()
        options.rootRank, options.rootTensor, options.timeout = source, 0, timeout
        group.broadcast([tensor], options).wait()


def test_every_bucket_arrives_with_its_header_and_digest(store) -> None:
    link, source = make_link(store), make_source(7, [1000, 0, 3_000_001])
    receiver = Receiver(store, link, versions={7: 3})
    receiver.start()
    sending = GlooLink(link, HOST)
    sending.open()
    assert sending.send(source, None) == 3_001_001
    receiver.join(300)
    assert receiver.headers == [
        [MAGIC, 7, i, Kind.FULL, -1, n, *[0] * 5] for i, n in enumerate([1000, 0, 3_000_001])
    ]
    assert receiver.digests == source.digests


def test_one_link_carries_version_after_version(store) -> None:
    link = make_link(store)
    receiver = Receiver(store, link, versions={1: 2, 2: 2})
    receiver.start()
    sending = GlooLink(link, HOST)
    sending.open()
    for version in (1, 2):
        sending.send(make_source(version, [100, 200]), None)
    receiver.join(300)
    assert [header[1] for header in receiver.headers] == [1, 1, 2, 2]


def test_a_receiver_that_never_comes_breaks_the_link_at_its_deadline(store) -> None:
    sending = GlooLink(make_link(store, timeout_s=0.5), HOST)
    started = time.monotonic()
    with pytest.raises(LinkBroken, match="not met"):
        sending.open()
    assert time.monotonic() - started < 60


MEET_AND_VANISH = """
import os, sys
from datetime import timedelta
from torch.distributed import PrefixStore, ProcessGroupGloo, TCPStore
store = TCPStore("127.0.0.1", int(sys.argv[1]), is_master=False, wait_for_workers=False)
options = ProcessGroupGloo._Options()
options._devices = [ProcessGroupGloo.create_device(hostname="127.0.0.1")]
options._timeout = timedelta(seconds=20)
group = ProcessGroupGloo(PrefixStore(sys.argv[2], store), 1, 2, options)
os._exit(9)
"""


def test_a_receiver_that_dies_breaks_only_its_own_link(store) -> None:
    dead_link, live_link = make_link(store, "dead/1", 240.0), make_link(store, "live/1")
    child = subprocess.Popen([sys.executable, "-c", MEET_AND_VANISH, str(store.port), "dead/1"])
    source = make_source(1, [500_000] * 8)
    to_dead = GlooLink(dead_link, HOST)
    to_dead.open()
    child.wait(timeout=300)
    receiver = Receiver(store, live_link, versions={1: 8})
    receiver.start()
    to_live = GlooLink(live_link, HOST)
    to_live.open()
    started = time.monotonic()
    with pytest.raises(LinkBroken, match="after"):
        to_dead.send(source, None)
    assert time.monotonic() - started < 120  # noticed, not timed out
    assert to_live.send(source, None) == 4_000_000
    receiver.join(300)
    assert receiver.digests == source.digests


def test_a_silent_receiver_breaks_the_link_at_its_deadline(store) -> None:
    link = make_link(store, timeout_s=1.0)
    receiver = Receiver(store, link, versions={})  # meets, stays connected, never receives
    receiver.start()
    sending = GlooLink(link, HOST)
    sending.open()
    receiver.join(300)
    started = time.monotonic()
    with pytest.raises(LinkBroken, match="Timed out"):
        sending.send(make_source(1, [20_000_000] * 3), None)
    assert time.monotonic() - started < 60


def test_a_broken_link_stays_broken(store) -> None:
    sending = GlooLink(make_link(store, timeout_s=0.3), HOST)
    with pytest.raises(LinkBroken, match="closed"):
        sending.send(make_source(1, [10]), None)


def test_a_send_that_is_called_off_ends_between_buckets(store) -> None:
    link = make_link(store)
    receiver = Receiver(store, link, versions={1: 1})
    receiver.start()
    sending = GlooLink(link, HOST)
    sending.open()
    answers = iter([False, True])
    with pytest.raises(LinkBroken, match="dropped"):
        sending.send(make_source(1, [10, 10]), None, cancelled=lambda: next(answers))
    receiver.join(300)
    assert len(receiver.headers) == 1


def test_both_ends_of_a_link_use_the_interface_that_it_names(store) -> None:
    link = replace(make_link(store), interface="lo")
    receiver = Receiver(store, link, versions={7: 1})
    receiver.start()
    sending = GlooLink(link, "192.0.2.1")  # of no machine
    sending.open()
    assert sending.send(make_source(7, [1000]), None) == 1000
    receiver.join(300)


def test_an_interface_that_has_gone_breaks_the_link_by_name(store) -> None:
    gone = GlooLink(replace(make_link(store), interface="eth99"), HOST)
    with pytest.raises(LinkBroken, match="eth99"):
        gone.open()


def test_the_interfaces_of_a_node_are_those_with_an_address_that_others_can_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def address(family: int, text: str) -> SimpleNamespace:
        return SimpleNamespace(family=family, address=text)

    found = {
        "eth1": [address(socket.AF_INET6, "fe80::1%eth1"), address(socket.AF_INET, "10.0.1.2")],
        "eth0": [address(socket.AF_INET6, "2001:db8::7")],
        "veth7": [address(socket.AF_INET6, "fe80::2%veth7")],
        "dummy0": [address(socket.AF_PACKET, "02:00:00:00:00:01")],
    }
    monkeypatch.setattr("psutil.net_if_addrs", lambda: found)
    assert network_interfaces() == ("eth0", "eth1")
