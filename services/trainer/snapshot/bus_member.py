"""One trainer rank as a member of the weight bus: registers, follows orders, reports."""

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from services.bus_orders import follow_orders
from services.observability.log import Log
from services.protocol.errors import NotReady
from services.protocol.weights.hello import TrainerHello
from services.protocol.weights.weight_bus import (
    DropLinks,
    Link,
    Order,
    Phase,
    Report,
    SendWeights,
    WeightBus,
)
from services.retry import retrying
from services.side_by_side import cancel
from services.trainer.snapshot.snapshot import SnapshotStore
from services.transport.gloo import GlooLink, LinkBroken
from services.transport.links import make_link

POLL_S = 10.0
RETRY_S = 0.2
REPORT_DEADLINE_S = 10.0
SUPERSEDED = "superseded"

_log = Log("trainer")


class _Outlet:
    """A link, the one thread that uses it, and the versions that the bus ordered it to send."""

    def __init__(self, link: GlooLink) -> None:
        self.link = link
        self.versions: set[int] = set()
        self.dropped = False
        self._opened = False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"link-{link.link.replica_id}")

    async def send(self, order: SendWeights, store: SnapshotStore) -> int:
        """Open if need be and send, in the link's own thread; returns payload bytes."""
        if self.dropped:
            raise LinkBroken("dropped")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._send, order, store)

    def _send(self, order: SendWeights, store: SnapshotStore) -> int:
        if self.dropped:
            raise LinkBroken("dropped")
        if not self._opened:
            self._opened = True
            self.link.open()
        source = store.source(order.version)
        if source is None:
            self.link.close()
            raise LinkBroken(SUPERSEDED)
        return self.link.send(source, order.base, cancelled=lambda: self.dropped)

    def drop(self) -> None:
        """Forget the group as soon as the thread is done with it; never waits."""
        self.dropped = True
        self._thread.submit(self.link.close)
        self._thread.shutdown(wait=False)


class BusMember:
    """Carries out the bus's orders while the rank trains; every link has its own thread."""

    def __init__(
        self,
        hello: TrainerHello,
        bus: WeightBus,
        store: SnapshotStore,
        address: str,
        *,
        make_link: Callable[[Link, str], GlooLink] = make_link,
    ) -> None:
        self._hello, self._bus, self._store = hello, bus, store
        self._address, self._make_link = address, make_link
        self._outlets: dict[str, _Outlet] = {}
        self._sends: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Follow the bus until cancelled; an absent bus is tried again for ever."""
        try:
            await follow_orders(
                self._bus,
                self._hello.member_id,
                register=lambda: self._bus.register_trainer(self._hello),
                carry_out=self._carry_out,
                wait_s=POLL_S,
            )
        finally:
            await self._close()

    async def _carry_out(self, order: Order) -> None:
        if isinstance(order, SendWeights):
            self._start_send(order)
        elif isinstance(order, DropLinks):
            self._drop(lambda link: link.prefix.startswith(order.prefix))
        else:
            _log.warning("order_not_for_a_trainer", order=type(order).__name__)

    def _start_send(self, order: SendWeights) -> None:
        link = order.link
        outlet = self._outlets.get(link.prefix)
        if outlet is None:
            # A new prefix means that the bus gave up the link before.
            self._drop(
                lambda earlier: (
                    (earlier.replica_id, earlier.stripe) == (link.replica_id, link.stripe)
                )
            )
            outlet = self._outlets[link.prefix] = _Outlet(self._make_link(link, self._address))
        if order.version in outlet.versions:
            return  # delivered again
        outlet.versions.add(order.version)
        task = asyncio.create_task(self._send(outlet, order))
        self._sends.add(task)
        task.add_done_callback(self._sends.discard)

    def _drop(self, matches: Callable[[Link], bool]) -> None:
        """Drop the outlets whose link matches."""
        for prefix, outlet in list(self._outlets.items()):
            if matches(outlet.link.link):
                self._outlets.pop(prefix).drop()

    async def _send(self, outlet: _Outlet, order: SendWeights) -> None:
        """Send and report; a report that the bus does not get in time is given up."""
        started, replica_id = time.perf_counter(), order.link.replica_id
        error, sent = None, 0
        try:
            sent = await outlet.send(order, self._store)
        except LinkBroken as broken:
            error = str(broken)
            _log.warning("send_failed", replica=replica_id, version=order.version, why=error)
        report = Report(
            member_id=self._hello.member_id,
            replica_id=replica_id,
            phase=Phase.SEND,
            version=order.version,
            error=error,
            seconds=time.perf_counter() - started,
            sent_bytes=sent,
            prefix=order.link.prefix,
        )
        try:
            await retrying(
                lambda: self._bus.report(report), pauses=[RETRY_S], timeout_s=REPORT_DEADLINE_S
            )
        except NotReady as lost:
            _log.warning("report_lost", replica=replica_id, why=str(lost))

    async def _close(self) -> None:
        self._drop(lambda _: True)
        await cancel(*self._sends)
