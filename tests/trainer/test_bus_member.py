"""A trainer rank as a member of the weight bus."""

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
import torch

from services.protocol.errors import NotReady
from services.protocol.weights.hello import TrainerHello
from services.protocol.weights.weight_bus import (
    DropLinks,
    Link,
    Order,
    Orders,
    Phase,
    Report,
    SendWeights,
)
from services.trainer.snapshot.bus_member import SUPERSEDED, BusMember
from services.trainer.snapshot.snapshot import Snapshot, SnapshotSource, SnapshotStore
from services.transport.gloo import LinkBroken

HELLO = TrainerHello(member_id="trainer/a/0", group="a", rank=0, world_size=1)
DEADLINE_S = 300.0


class FakeBus:
    """Numbers orders as the bus does, and can be away or forget its members."""

    def __init__(self) -> None:
        self.hellos = 0
        self.reports: asyncio.Queue[Report] = asyncio.Queue()
        self.acknowledged: list[int] = []
        self.known = True
        self.away = 0
        self._orders: list[Order] = []
        self._changed = asyncio.Event()

    def give(self, *orders: Order) -> None:
        self._orders += orders
        self._changed.set()

    def wake(self) -> None:
        self._changed.set()

    async def register_trainer(self, hello: TrainerHello) -> None:
        self._check_away()
        self.hellos += 1
        self.known = True

    async def next_orders(self, member_id: str, acknowledged: int, wait_s: float) -> Orders:
        self._check_away()
        if not self.known:
            return Orders(known=False, last=0, orders=())
        self.acknowledged.append(acknowledged)
        if acknowledged >= len(self._orders):
            self._changed.clear()
            await asyncio.wait_for(self._changed.wait(), DEADLINE_S)
        if not self.known:
            return Orders(known=False, last=0, orders=())
        return Orders(known=True, last=len(self._orders), orders=tuple(self._orders[acknowledged:]))

    async def report(self, report: Report) -> None:
        self._check_away()
        self.reports.put_nowait(report)

    async def next_report(self) -> Report:
        return await asyncio.wait_for(self.reports.get(), DEADLINE_S)

    def _check_away(self) -> None:
        if self.away:
            self.away -= 1
            raise NotReady("away")


class FakeLink:
    """Stands for a Gloo link; blocks while `gate` is shut."""

    made: list["FakeLink"]

    def __init__(self, link: Link, address: str) -> None:
        self.link, self.address = link, address
        self.sent: list[int] = []
        self.opened = 0
        self.closed = threading.Event()
        self.gate = threading.Event()
        self.gate.set()
        self.broken = False
        FakeLink.made.append(self)

    def open(self) -> None:
        self.opened += 1

    def send(self, source: SnapshotSource, base: int | None, *, cancelled: Any) -> int:
        assert self.gate.wait(DEADLINE_S)
        if self.broken or cancelled():
            raise LinkBroken("gone")
        self.sent.append(source.version)
        return 4

    def close(self) -> None:
        self.closed.set()


def link_to(replica_id: str, prefix: str) -> Link:
    return Link(
        replica_id=replica_id,
        trainer_rank=0,
        store_host="127.0.0.1",
        store_port=1,
        prefix=prefix,
        timeout_s=1.0,
    )


def snapshot_of(version: int) -> Snapshot:
    buckets = ((torch.zeros(4, dtype=torch.uint8),),)
    return Snapshot(version=version, buckets=buckets, digests=("",), itemsize=4)


@pytest.fixture
async def bus() -> FakeBus:
    return FakeBus()


@pytest.fixture
def store() -> SnapshotStore:
    store = SnapshotStore()
    store.put(snapshot_of(1))
    store.put(snapshot_of(2))
    return store


@pytest.fixture
async def member(bus: FakeBus, store: SnapshotStore) -> AsyncIterator["asyncio.Task[None]"]:
    FakeLink.made = []
    member = BusMember(HELLO, bus, store, "127.0.0.1", make_link=FakeLink)  # type: ignore[arg-type]
    task = asyncio.create_task(member.run())
    yield task
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_orders_are_carried_out_reported_and_acknowledged(bus, member) -> None:
    bus.give(SendWeights(version=1, link=link_to("r", "r/1")))
    report = await bus.next_report()
    assert (report.phase, report.version, report.error) == (Phase.SEND, 1, None)
    assert (report.replica_id, report.prefix, report.sent_bytes) == ("r", "r/1", 4)
    bus.give(SendWeights(version=2, link=link_to("r", "r/1")))
    await bus.next_report()
    assert bus.acknowledged[:2] == [0, 1]
    assert [(link.opened, link.sent) for link in FakeLink.made] == [(1, [1, 2])]


async def test_an_order_delivered_again_is_not_sent_again(bus, member) -> None:
    order = SendWeights(version=1, link=link_to("r", "r/1"))
    bus.give(order, order)
    await bus.next_report()
    bus.give(SendWeights(version=2, link=link_to("r", "r/1")))
    await bus.next_report()
    assert FakeLink.made[0].sent == [1, 2]


async def test_a_version_that_is_gone_is_reported_as_superseded(bus, member) -> None:
    bus.give(SendWeights(version=0, link=link_to("r", "r/1")))
    report = await bus.next_report()
    assert report.error == SUPERSEDED
    assert FakeLink.made[0].closed.is_set()


async def test_nothing_hangs_a_blocked_link_delays_no_other(bus, member) -> None:
    bus.give(SendWeights(version=1, link=link_to("slow", "slow/1")))
    await bus.next_report()
    slow = FakeLink.made[0]
    slow.gate.clear()
    bus.give(
        SendWeights(version=2, link=link_to("slow", "slow/1")),
        SendWeights(version=2, link=link_to("fast", "fast/1")),
    )
    assert (await bus.next_report()).replica_id == "fast"
    slow.gate.set()
    assert (await bus.next_report()).replica_id == "slow"


async def test_a_broken_link_is_an_error_report_and_others_go_on(bus, member) -> None:
    bus.give(SendWeights(version=1, link=link_to("r", "r/1")))
    await bus.next_report()
    FakeLink.made[0].broken = True
    bus.give(
        SendWeights(version=2, link=link_to("r", "r/1")),
        SendWeights(version=2, link=link_to("s", "s/1")),
    )
    reports = {
        report.replica_id: report.error for report in [await bus.next_report() for _ in "12"]
    }
    assert reports == {"r": "gone", "s": None}


async def test_dropped_links_are_closed_and_only_those(bus, member) -> None:
    bus.give(
        SendWeights(version=1, link=link_to("r", "r/1")),
        SendWeights(version=1, link=link_to("s", "s/1")),
    )
    await bus.next_report()
    await bus.next_report()
    bus.give(
        DropLinks(replica_id="r", prefix="r/"), SendWeights(version=2, link=link_to("s", "s/1"))
    )
    await bus.next_report()
    dropped, kept = FakeLink.made
    assert await asyncio.to_thread(dropped.closed.wait, DEADLINE_S)
    assert not kept.closed.is_set()


async def test_a_send_whose_link_is_dropped_at_once_is_still_reported(bus, member) -> None:
    bus.give(
        SendWeights(version=1, link=link_to("r", "r/1")), DropLinks(replica_id="r", prefix="r/1")
    )
    assert (await bus.next_report()).error == "dropped"


async def test_a_new_prefix_for_a_replica_replaces_its_link(bus, member) -> None:
    for epoch in (1, 2):
        bus.give(SendWeights(version=epoch, link=link_to("r", f"r/{epoch}")))
        await bus.next_report()
    first, second = FakeLink.made
    assert await asyncio.to_thread(first.closed.wait, DEADLINE_S)
    assert (first.sent, second.sent) == ([1], [2])


async def test_a_bus_that_is_away_is_tried_again(bus, member) -> None:
    bus.away = 2
    bus.give(SendWeights(version=1, link=link_to("r", "r/1")))
    assert (await bus.next_report()).error is None


async def test_a_bus_that_forgot_the_member_is_told_again(bus, member) -> None:
    bus.give(SendWeights(version=1, link=link_to("r", "r/1")))
    await bus.next_report()
    bus.known = False
    bus._orders.clear()
    bus.wake()
    bus.give(SendWeights(version=2, link=link_to("r", "r/2")))
    assert (await bus.next_report()).version == 2
    assert bus.hellos == 2
