"""The weight bus: answers members, keeps one delivery per replica, publishes the table.

It gives orders and counts votes; weight bytes go from trainer ranks to replicas and never
pass through it.
"""

import asyncio
import itertools
import secrets
import time
from collections.abc import Awaitable, Callable, Collection

from cachetools import FIFOCache

from services.changes import Changes
from services.observability.log import Log
from services.observability.metrics import BusMetrics
from services.protocol.errors import InvalidInput
from services.protocol.weights.hello import RelayHello, ReplicaHello, TrainerHello
from services.protocol.weights.replica_control import ControlOutcome
from services.protocol.weights.version_ledger import VersionRecord
from services.protocol.weights.weight_bus import (
    MemberTable,
    Order,
    Orders,
    Phase,
    ReplicaState,
    Report,
)
from services.protocol.weights.weights import CanaryLogprobs, WeightManifest
from services.side_by_side import cancel
from services.weight_bus.barrier import Barrier
from services.weight_bus.config import WeightBusConfig
from services.weight_bus.control import Control
from services.weight_bus.delivery.canary_gaps import GoodGaps
from services.weight_bus.delivery.delivery import Delivery
from services.weight_bus.delivery.delivery_context import DeliveryContext
from services.weight_bus.delivery.interfaces import check_all_interfaces
from services.weight_bus.lending import Lending
from services.weight_bus.mailbox import Mailbox
from services.weight_bus.members.relays import Relays
from services.weight_bus.members.replicas import Replicas
from services.weight_bus.members.trainer_groups import TrainerGroups
from services.weight_bus.node_relays import NO_RELAYS, NodeRelays, RelayStarter
from services.weight_bus.version_ledger import VersionLedger

_CANARIES_KEPT = 8
_TICK_S = 0.25
_WANTED_S = 60.0

log = Log("weight_bus")


class Bus:
    """Implements `services.protocol.weights.weight_bus.WeightBus` for one event loop."""

    def __init__(
        self,
        config: WeightBusConfig,
        *,
        store: Callable[[], Awaitable[tuple[str, int]]],
        forget_keys: Callable[[str], None] = lambda prefix: None,
        relays: RelayStarter = NO_RELAYS,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._config = config
        self._clock = clock
        self._changes = Changes()
        self._canaries: FIFOCache[int, CanaryLogprobs] = FIFOCache(_CANARIES_KEPT)
        self._replicas = Replicas(config, clock=clock)
        self._trainers = TrainerGroups(heartbeat_timeout_s=config.heartbeat_timeout_s, clock=clock)
        self._relays = Relays(config, expected=relays is not NO_RELAYS, clock=clock)
        self._ledger = VersionLedger(config.ledger_versions, wall=wall)
        self._mailboxes: dict[str, Mailbox] = {}
        self._deliveries: dict[str, tuple[Delivery, asyncio.Task[None]]] = {}
        self._manifest: tuple[WeightManifest, float] | None = None
        self._wanted: tuple[int | None, float] = None, 0.0
        # Also keeps link prefixes of a restarted bus apart from those before.
        self._bus_id, numbers = secrets.token_hex(4), itertools.count()
        self._control = Control(
            self._replicas,
            post=self._post,
            changed=self._update,
            new_id=lambda: f"{self._bus_id}.{next(numbers)}",
        )
        self._lending = Lending(self._replicas, self._control, self._changes, clock=clock)
        self._shown = self._message(revision=0)
        self._tick_task: asyncio.Task[None] | None = None
        self._context = DeliveryContext(
            config=config,
            barrier=Barrier(self._replicas, self._changes),
            replicas=self._replicas,
            relays=self._relays,
            trainers=self._trainers,
            ledger=self._ledger,
            changes=self._changes,
            canaries=self._canaries,
            good_gaps=GoodGaps(config.canary_max_gap),
            newest=lambda: self._manifest,
            post=self._post,
            store=store,
            forget_keys=forget_keys,
            clock=clock,
            new_prefix=lambda member: f"{member}/{self._bus_id}.{next(numbers)}/",
        )
        self._node_relays = NodeRelays(self._context, relays)

    async def register_replica(self, hello: ReplicaHello) -> None:
        """See `services.protocol.weights.weight_bus.WeightBus`."""
        self._replicas.enter(hello)
        if hello.committed_version is not None:
            self._ledger.serves(hello.replica_id, hello.committed_version, hello.copy)
        self._take_manifest()
        known = self._deliveries.get(hello.replica_id)
        if known is None or known[1].done():
            # Without orders of a delivery before: what they were about may be gone.
            self._mailboxes[hello.replica_id] = Mailbox()
            delivery = Delivery(hello.replica_id, self._context)
            task = asyncio.create_task(delivery.run(), name=f"deliver to {hello.replica_id}")
            self._deliveries[hello.replica_id] = (delivery, task)
        log.info("replica registered", replica=hello.replica_id, version=hello.committed_version)
        self._node_relays.start_missing()
        self._lending.registered(hello.replica_id, hello.held)
        self._update()

    async def register_relay(self, hello: RelayHello) -> None:
        """See `services.protocol.weights.weight_bus.WeightBus`."""
        self._mailboxes.setdefault(hello.relay_id, Mailbox())
        self._node_relays.enter(hello)
        if hello.copy is not None:  # also one that no replica has loaded: its number is used up
            self._replicas.raise_newest(hello.copy.version)
        self._take_manifest()
        await self._node_relays.end_unknown()
        self._look_at_senders()
        self._update()

    async def register_trainer(self, hello: TrainerHello) -> None:
        """See `services.protocol.weights.weight_bus.WeightBus`."""
        self._trainers.enter(hello)
        self._mailboxes.setdefault(hello.member_id, Mailbox())
        log.info("trainer rank registered", member=hello.member_id, group=hello.group)
        self._look_at_senders()
        self._update()

    async def control(
        self, replica_id: str, action: str, level: int | None, wait_s: float
    ) -> ControlOutcome:
        """See `services.protocol.weights.weight_bus.WeightBus`."""
        return await self._control.order(replica_id, action, level, wait_s)

    async def report_control(self, outcome: ControlOutcome) -> None:
        """See `services.protocol.weights.weight_bus.WeightBus`."""
        self._control.take(outcome)

    async def lend_devices(self, borrower: str, wait_s: float) -> tuple[str, ...]:
        """See `services.protocol.weights.weight_bus.WeightBus`."""
        return await self._lending.lend(borrower, wait_s)

    async def return_devices(self, borrower: str) -> None:
        """See `services.protocol.weights.weight_bus.WeightBus`."""
        self._lending.end(borrower)

    async def leave(self, member_id: str) -> None:
        """See `services.protocol.weights.weight_bus.WeightBus`."""
        self._replicas.leave(member_id)
        self._trainers.leave(member_id)
        self._relays.leave(member_id)
        await self._node_relays.end_unknown()
        await self._end_deliveries([member_id])
        self._mailboxes.pop(member_id, None)
        self._forget_series(member_id)
        self._update()

    async def next_orders(self, member_id: str, acknowledged: int, wait_s: float) -> Orders:
        """See `services.protocol.weights.weight_bus.WeightBus`."""
        mailbox = self._mailboxes.get(member_id)
        if mailbox is None or not self._seen(member_id):
            return Orders(known=False, last=0, orders=())
        mailbox.acknowledge(acknowledged)
        await self._changes.until(
            lambda: bool(mailbox.waiting) or self._mailboxes.get(member_id) is not mailbox,
            timeout_s=min(wait_s, self._config.poll_s),
        )
        known = self._mailboxes.get(member_id) is mailbox and self._seen(member_id)
        orders = mailbox.waiting if known else ()
        wanted = self._wanted[0] if self._clock() < self._wanted[1] else None
        return Orders(known=known, last=mailbox.last, orders=orders, wanted_replicas=wanted)

    async def report(self, report: Report) -> None:
        """See `services.protocol.weights.weight_bus.WeightBus`."""
        if report.phase is Phase.SEND and report.error is None:
            # The replica's vote decides; a send that went well is only measured.
            BusMetrics.sent_bytes.inc(report.sent_bytes, tags={"replica": report.replica_id})
            return
        taken = self._node_relays.take(report)
        delivery = self._deliveries.get(report.replica_id)
        if delivery is not None:
            taken = delivery[0].take(report)
        if not taken:
            BusMetrics.dropped_reports.inc()

    async def publish(self, manifest: WeightManifest, group: str | None = None) -> None:
        """See `services.protocol.weights.weight_bus.WeightBus`.

        A restarted bus knows from its members which version is the newest. If none of them gave it
        the manifest, it takes that one version again; else it notes who published these bytes.
        """
        known = self._manifest[0] if self._manifest is not None else None
        again = known is None or known.version != manifest.version
        try:
            self._trainers.check_publisher(group)
            if not again and known is not None and known.digests == manifest.digests:
                self._note_publisher(group)
            self._replicas.check_publish(manifest, again=again)
            check_all_interfaces(self._context)
        except InvalidInput as refusal:
            BusMetrics.refusals.inc(tags={"what": f"publish_{refusal.field}"})
            log.warning("publish refused", version=manifest.version, why=str(refusal))
            raise
        self._manifest = (manifest, self._clock())
        self._note_publisher(group)
        self._replicas.raise_newest(manifest.version)
        self._ledger.published(manifest)
        log.info("published", version=manifest.version, bytes=manifest.total_bytes)
        self._update()

    async def publish_canary(self, version: int, logprobs: CanaryLogprobs) -> None:
        """See `services.protocol.weights.weight_bus.WeightBus`."""
        self._canaries[version] = logprobs
        for delivery, _ in self._deliveries.values():
            delivery.look_at_canary()
        self._update()

    async def watch(self, revision: int, wait_s: float) -> MemberTable:
        """See `services.protocol.weights.weight_bus.WeightBus`.

        A watcher that knew a bus before a restart has a higher revision; it is answered at
        once, too.
        """
        await self._changes.until(lambda: self._look().revision != revision, timeout_s=wait_s)
        return self._look()

    async def versions(self) -> tuple[VersionRecord, ...]:
        """See `services.protocol.weights.weight_bus.WeightBus` and `VersionLedger`."""
        return self._ledger.records()

    async def bound_lag(self, max_lag: int | None) -> None:
        """See `services.protocol.weights.weight_bus.WeightBus`.

        Raises:
            InvalidInput: `max_lag` is negative.
        """
        if max_lag is not None and max_lag < 0:
            raise InvalidInput("max_lag", max_lag, "Use a number from 0, or null for no bound.")
        self._replicas.max_lag = max_lag
        self._update()

    async def want_replicas(self, replicas: int) -> None:
        """See `services.protocol.weights.weight_bus.WeightBus`."""
        if replicas < 1:
            raise InvalidInput("replicas", replicas, "Use a number from 1.")
        self._wanted = replicas, self._clock() + _WANTED_S

    async def close(self) -> None:
        """End every task."""
        await self._end_deliveries(list(self._deliveries))
        await self._node_relays.close()
        await self._lending.close()
        await cancel(self._tick_task)

    def start(self) -> None:
        """Begin to notice silence; calling it again does nothing."""
        if self._tick_task is None:
            self._tick_task = asyncio.create_task(self._tick(), name="tick")

    async def expire(self) -> None:
        """Act on members that have been silent for too long."""
        died = self._replicas.expire()
        for replica_id in died:
            log.warning("replica is dead", replica=replica_id)
        forgotten = self._deliveries.keys() - set(self._replicas.replica_ids)
        await self._end_deliveries({*died, *forgotten})
        self._lending.expire()
        self._trainers.expire(self._config.forget_after_s)
        self._relays.expire(self._config.forget_after_s)
        await self._node_relays.end_unknown()
        self._node_relays.start_missing()
        self._look_at_senders()
        known = {*self._replicas.replica_ids, *self._relays.relay_ids}
        for member_id in self._mailboxes.keys() - known:
            if self._trainers.hello(member_id) is None:
                self._mailboxes.pop(member_id, None)
                self._forget_series(member_id)
        self._update()

    async def _tick(self) -> None:
        while True:
            try:
                await self.expire()
            # Edge of the loop: without it a silent replica would keep its place for good.
            except Exception:
                log.exception("tick failed")
                BusMetrics.tick_failures.inc()
            await asyncio.sleep(_TICK_S)

    def _look_at_senders(self) -> None:
        """See `Transfer.look_at_senders`."""
        for delivery, _ in self._deliveries.values():
            delivery.look_at_senders()
        self._node_relays.look_at_senders()

    def _seen(self, member_id: str) -> bool:
        tables = (self._replicas, self._trainers, self._relays)
        return any(table.seen(member_id) for table in tables)

    def _note_publisher(self, group: str | None) -> None:
        if self._trainers.published(group):
            self._relays.forgive()

    def _take_manifest(self) -> None:
        """After a restart: what members hold, they can give to others without a trainer.

        The one that holds the newest version may have registered before the one that told of it.
        """
        newest = self._replicas.newest_version
        if self._manifest is not None and self._manifest[0].version == newest:
            return
        for copy in (*self._relays.copies, *self._replicas.copies):
            if copy.version == newest:
                self._manifest = (copy, self._clock())
                self._ledger.found(copy)
                return

    def _post(self, member_id: str, order: Order) -> None:
        self._mailboxes[member_id].post(order)
        self._changes.notify()

    async def _end_deliveries(self, replica_ids: Collection[str]) -> None:
        """None is known any more when the first of them ends: their replicas may register then."""
        ended = [self._deliveries.pop(one)[1] for one in replica_ids if one in self._deliveries]
        for replica_id in replica_ids:
            self._control.forget(replica_id)
        await cancel(*ended)

    def _update(self) -> None:
        """Wake all waiters, so that they look again."""
        self._look()
        self._changes.notify()

    def _look(self) -> MemberTable:
        """The table as it is now, under a new revision if it is not as it was."""
        if self._message(revision=self._shown.revision) != self._shown:
            self._shown = self._message(revision=self._shown.revision + 1)
            self._export()
        return self._shown

    def _message(self, *, revision: int) -> MemberTable:
        return MemberTable(
            bus_id=self._bus_id,
            revision=revision,
            newest_version=self._replicas.newest_version,
            lease_s=self._config.lease_s,
            members=self._replicas.members(),
            trainer_ready=self._trainers.current is not None,
            pushes=self._replicas.pushes,
        )

    def _export(self) -> None:
        if self._shown.newest_version is not None:
            BusMetrics.newest_version.set(self._shown.newest_version)
        BusMetrics.leased.set(len(self._shown.leased))
        lent = sum(one.state is ReplicaState.LENT for one in self._shown.members)
        BusMetrics.lent.set(lent)
        for one in self._shown.members:
            if one.committed_version is not None:
                BusMetrics.replica_version.set(one.committed_version, {"replica": one.replica_id})

    def _forget_series(self, replica_id: str) -> None:
        for gauge in (
            BusMetrics.replica_version,
            BusMetrics.canary_gap,
            BusMetrics.canary_mean_gap,
        ):
            gauge.forget({"replica": replica_id})
