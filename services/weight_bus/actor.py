"""The weight bus as a Ray actor."""

import ray

from services.observability import tracing
from services.open_files import raise_open_files
from services.protocol.weights.hello import ReplicaHello, TrainerHello
from services.weight_bus.bus import Bus
from services.weight_bus.config import WeightBusConfig
from services.weight_bus.node_relays import NO_RELAYS
from services.weight_bus.relay.actor import ray_relays
from services.weight_bus.rendezvous import Rendezvous


class WeightBusActor(Bus):
    """`Bus` with a rendezvous store on its node.

    Ray runs the constructor outside the event loop, also after a restart, so the first
    registration starts the bus's tasks.
    """

    def __init__(self, config: WeightBusConfig) -> None:
        raise_open_files()
        tracing.start(config.tracing, service="weight_bus")
        address: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
        store = Rendezvous(address, timeout_s=config.link_timeout_s)
        relays = ray_relays() if config.relays else NO_RELAYS
        super().__init__(config, store=store.address, forget_keys=store.forget, relays=relays)

    async def register_replica(self, hello: ReplicaHello) -> None:
        """See `services.protocol.weights.weight_bus.WeightBus`."""
        self.start()
        await super().register_replica(hello)

    async def register_trainer(self, hello: TrainerHello) -> None:
        """See `services.protocol.weights.weight_bus.WeightBus`."""
        self.start()
        await super().register_trainer(hello)
