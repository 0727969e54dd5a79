"""The weight bus as a Ray actor."""

import ray

from services.observability import tracing
from services.open_files import raise_open_files
from services.protocol.weights.replica_control import ControlOutcome
from services.protocol.weights.version_ledger import VersionRecord
from services.protocol.weights.weight_bus import (
    MemberTable,
    Orders,
    ReplicaHello,
    Report,
    TrainerHello,
)
from services.protocol.weights.weights import CanaryLogprobs, WeightManifest
from services.weight_bus.bus import Bus
from services.weight_bus.config import WeightBusConfig
from services.weight_bus.rendezvous import Rendezvous


class WeightBusActor:
    """`Bus` with a rendezvous store on its node; see the protocol for every method.

    Ray runs the constructor outside the event loop, also after a restart, so the bus's
    tasks are started by the first call.
    """

    def __init__(self, config: WeightBusConfig) -> None:
        raise_open_files()
        tracing.start(config.tracing, service="weight_bus")
        address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        store = Rendezvous(address, timeout_s=config.link_timeout_s)
        self._bus = Bus(config, store=store.address)

    async def register_replica(self, hello: ReplicaHello) -> None:
        """See `services.protocol.weights.weight_bus.WeightBus`."""
        self._bus.start()
        await self._bus.register_replica(hello)

    async def register_trainer(self, hello: TrainerHello) -> None:
        """See `services.protocol.weights.weight_bus.WeightBus`."""
        self._bus.start()
        await self._bus.register_trainer(hello)

    async def leave(self, member_id: str) -> None:
        """See `services.protocol.weights.weight_bus.WeightBus`."""
        await self._bus.leave(member_id)

    async def next_orders(self, member_id: str, acknowledged: int, wait_s: float) -> Orders:
        """See `services.protocol.weights.weight_bus.WeightBus`."""
        return await self._bus.next_orders(member_id, acknowledged, wait_s)

    async def report(self, report: Report) -> None:
        """See `services.protocol.weights.weight_bus.WeightBus`."""
        await self._bus.report(report)

    async def publish(self, manifest: WeightManifest, group: str | None = None) -> None:
        """See `services.protocol.weights.weight_bus.WeightBus`."""
        await self._bus.publish(manifest, group)

    async def publish_canary(self, version: int, logprobs: CanaryLogprobs) -> None:
        """See `services.protocol.weights.weight_bus.WeightBus`."""
        await self._bus.publish_canary(version, logprobs)

    async def watch(self, revision: int, wait_s: float) -> MemberTable:
        """See `services.protocol.weights.weight_bus.WeightBus`."""
        return await self._bus.watch(revision, wait_s)

    async def control(
        self, replica_id: str, action: str, level: int | None, timeout_s: float
    ) -> ControlOutcome:
        """See `services.protocol.weights.weight_bus.WeightBus`."""
        return await self._bus.control(replica_id, action, level, timeout_s)

    async def report_control(self, outcome: ControlOutcome) -> None:
        """See `services.protocol.weights.weight_bus.WeightBus`."""
        await self._bus.report_control(outcome)

    async def versions(self) -> tuple[VersionRecord, ...]:
        """See `services.protocol.weights.weight_bus.WeightBus`."""
        return await self._bus.versions()

    async def bound_lag(self, max_lag: int | None) -> None:
        """See `services.protocol.weights.weight_bus.WeightBus`."""
        await self._bus.bound_lag(max_lag)

    async def want_replicas(self, replicas: int) -> None:
        """See `services.protocol.weights.weight_bus.WeightBus`."""
        await self._bus.want_replicas(replicas)
