"""A node's relay: it holds one version in shared memory, and passes it on while it receives."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from services.bus_orders import follow_orders, report_end
from services.observability.log import Log
from services.protocol.errors import NotReady
from services.protocol.weights.hello import RelayHello
from services.protocol.weights.weight_bus import (
    DropLinks,
    Order,
    Phase,
    Report,
    SendWeights,
    StageWeights,
    WeightBus,
)
from services.side_by_side import cancel
from services.transport.network_interfaces import network_interfaces
from services.transport.receiver import VersionReceiver
from services.transport.shared_memory import memory_domain

_POLL_WAIT_S = 2.0

log = Log("weight_bus")


class Relay:
    """Carries bytes and decides nothing: the bus orders what it receives and whom it feeds."""

    def __init__(self, bus: WeightBus, *, relay_id: str, node_id: str, host: str) -> None:
        """`host` is the address of this node on which links listen."""
        self._bus, self._id, self._node_id = bus, relay_id, node_id
        self._receiver = VersionReceiver(host, keeps_copy=True, shared=True)
        self._staging: asyncio.Task[None] | None = None
        self._sends: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Follow the bus until cancelled."""
        try:
            await follow_orders(
                self._bus,
                self._id,
                register=lambda: self._bus.register_relay(self._hello()),
                carry_out=self._carry_out,
                wait_s=_POLL_WAIT_S,
            )
        finally:
            await cancel(self._staging, *self._sends.values())
            self._receiver.close()

    def _hello(self) -> RelayHello:
        held = self._receiver.copy
        return RelayHello(
            relay_id=self._id,
            node_id=self._node_id,
            memory_domain=memory_domain(),
            copy=held,
            place=self._receiver.place if held is not None else None,
            interfaces=network_interfaces(),
        )

    async def _carry_out(self, order: Order) -> None:
        if isinstance(order, StageWeights):
            await cancel(self._staging)
            self._staging = asyncio.create_task(self._stage(order), name="staging")
        elif isinstance(order, SendWeights):
            self._start_send(order)
        elif isinstance(order, DropLinks) and order.replica_id == self._id:
            await cancel(self._staging)
            self._receiver.drop(order.prefix)
        elif isinstance(order, DropLinks):
            self._receiver.end_sends(order.prefix)
        else:
            log.warning("no order for a relay", order=type(order).__name__)

    async def _stage(self, order: StageWeights) -> None:
        report = self._about(self._id, Phase.STAGE, order.manifest.version, order.links[0].prefix)
        await self._report_end(
            report, self._receive(order), lambda _: {"place": self._receiver.place}
        )

    async def _receive(self, order: StageWeights) -> None:
        await self._receiver.receive(order)
        self._receiver.keep()

    def _start_send(self, order: SendWeights) -> None:
        link = order.link
        if link.prefix in self._sends:
            return  # delivered again
        report = self._about(link.replica_id, Phase.SEND, order.version, link.prefix)
        sending = self._report_end(
            report, self._receiver.send(order), lambda sent: {"sent_bytes": sent}
        )
        task = self._sends[link.prefix] = asyncio.create_task(sending, name=f"relay {link.prefix}")
        task.add_done_callback(lambda _: self._sends.pop(link.prefix, None))

    def _about(self, receiver_id: str, phase: Phase, version: int, prefix: str) -> Report:
        return Report(
            member_id=self._id,
            replica_id=receiver_id,
            phase=phase,
            version=version,
            error=None,
            seconds=0.0,
            prefix=prefix,
        )

    async def _report_end(
        self,
        report: Report,
        work: Coroutine[Any, Any, Any],
        found: Callable[[Any], dict[str, Any]],
    ) -> None:
        try:
            ended = await report_end(self._bus, report, work, found)
        except NotReady as lost:
            log.warning("report lost", relay=self._id, why=str(lost))
            return
        if ended.error is not None:
            log.warning(
                f"{ended.phase} failed", relay=self._id, version=ended.version, error=ended.error
            )
