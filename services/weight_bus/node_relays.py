"""The relays of all nodes with replicas: started where one is needed, fed, and ended."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from services.observability.log import Log
from services.observability.metrics import BusMetrics
from services.protocol.weights.hello import RelayHello
from services.protocol.weights.weight_bus import Report
from services.side_by_side import cancel
from services.weight_bus.delivery.delivery_context import DeliveryContext
from services.weight_bus.delivery.relay_delivery import RelayDelivery

_RAY_S = 60.0
"""Longest that Ray may take to start or end a relay, before the next one has its turn."""

log = Log("weight_bus")


@dataclass(frozen=True, kw_only=True)
class RelayStarter:
    """Starts and ends the process of a node's relay.

    Attributes:
        start: by Ray's id of a node; does nothing where it runs.
        stop: by Ray's id of a node.
    """

    start: Callable[[str], Awaitable[None]]
    stop: Callable[[str], Awaitable[None]]


async def _nothing(node_id: str) -> None:
    pass


NO_RELAYS = RelayStarter(start=_nothing, stop=_nothing)
"""Every replica receives by itself."""


class NodeRelays:
    """One delivery for each relay, and one relay for each node that has replicas."""

    def __init__(self, context: DeliveryContext, starter: RelayStarter) -> None:
        self._context, self._starter = context, starter
        self._wanted_at: dict[str, float] = {}
        self._turn = asyncio.Lock()
        self._calls: set[asyncio.Task[None]] = set()
        self._deliveries: dict[str, tuple[RelayDelivery, asyncio.Task[None]]] = {}

    def start_missing(self) -> None:
        """Have a relay on every node with replicas.

        One that has had none for `forget_after_s` gives its memory back.
        """
        now, limit_s = self._context.clock(), self._context.config.forget_after_s
        replicas = map(self._context.replicas.get, self._context.replicas.replica_ids)
        for node_id in {one.hello.node_id for one in replicas if one is not None} - {""}:
            if node_id not in self._wanted_at:
                self._ask(self._starter.start, node_id)
            self._wanted_at[node_id] = now
        for node_id, at in list(self._wanted_at.items()):
            if now - at > limit_s:
                self._ask(self._starter.stop, node_id)
                del self._wanted_at[node_id]

    def enter(self, hello: RelayHello) -> None:
        """Take a relay in, and begin to feed it."""
        self._context.relays.enter(hello)
        self._wanted_at.setdefault(hello.node_id, self._context.clock())
        if hello.relay_id not in self._deliveries:
            delivery = RelayDelivery(hello.relay_id, self._context)
            task = asyncio.create_task(delivery.run(), name=f"deliver to {hello.relay_id}")
            self._deliveries[hello.relay_id] = (delivery, task)
        log.info("relay registered", relay=hello.relay_id, node=hello.node_id)

    def take(self, report: Report) -> bool | None:
        """Hand in a report; None if it is about no relay, False if it is not awaited."""
        known = self._deliveries.get(report.replica_id)
        return known[0].take(report) if known is not None else None

    def look_at_senders(self) -> None:
        """See `Transfer.look_at_senders`."""
        for delivery, _ in self._deliveries.values():
            delivery.look_at_senders()

    async def end_unknown(self) -> None:
        """End the deliveries to relays that are in the table no more."""
        for relay_id in self._deliveries.keys() - set(self._context.relays.relay_ids):
            await cancel(self._deliveries.pop(relay_id)[1])

    async def close(self) -> None:
        """End every delivery; the relays go on."""
        tasks = [task for _, task in self._deliveries.values()]
        self._deliveries.clear()
        await cancel(*tasks, *self._calls)

    def _ask(self, call: Callable[[str], Awaitable[None]], node_id: str) -> None:
        """Start or stop beside the bus's own work: leases do not wait for Ray."""
        task = asyncio.create_task(self._asked(call, node_id), name=f"relay of {node_id}")
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)

    async def _asked(self, call: Callable[[str], Awaitable[None]], node_id: str) -> None:
        async with self._turn:
            try:
                async with asyncio.timeout(_RAY_S):
                    await call(node_id)
            # Edge of the task: the next tick starts a relay that is still wanted.
            except Exception:
                log.exception("relay neither started nor ended", node=node_id)
                BusMetrics.relay_failures.inc()
                self._wanted_at.pop(node_id, None)
