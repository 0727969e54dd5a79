"""A node's relay as a Ray actor, and how the bus starts one on a node."""

import asyncio
import contextlib
import os
import secrets
import threading
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from services.observability.log import Log
from services.open_files import raise_open_files
from services.peers import bus_peer
from services.protocol.weights.weight_bus import NAMESPACE, RELAY_ACTOR
from services.warm_workers import Stage, warmed
from services.weight_bus.node_relays import RelayStarter
from services.weight_bus.relay.relay import Relay

log = Log("weight_bus")


class RelayActor:
    """Runs a relay on a thread of its own; the process ends when the relay does."""

    def __init__(self) -> None:
        raise_open_files()
        node_id: str = ray.get_runtime_context().get_node_id()
        self._relay = Relay(
            bus_peer(),
            relay_id=f"{RELAY_ACTOR}{node_id}/{secrets.token_hex(4)}",
            node_id=node_id,
            host=ray.util.get_node_ip_address(),  # type: ignore[no-untyped-call]
        )
        threading.Thread(target=self._run, name="relay", daemon=True).start()

    def _run(self) -> None:
        try:
            asyncio.run(self._relay.run())
        # Edge of the process: Ray starts another one.
        except Exception:
            log.exception("relay ended")
        os._exit(1)


def ray_relays() -> RelayStarter:
    """Relays as detached actors, one on a node; they outlive the bus's process."""
    actor_class: Any = ray.remote(RelayActor)  # once: Ray never forgets one

    def start(node_id: str) -> None:
        actor_class.options(
            name=f"{RELAY_ACTOR}{node_id}",
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            max_restarts=-1,
            num_cpus=0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
            **warmed(Stage.TRAINER),
        ).remote()

    async def start_beside(node_id: str) -> None:
        await asyncio.to_thread(start, node_id)

    async def end_beside(node_id: str) -> None:
        await asyncio.to_thread(end_relay, node_id)

    return RelayStarter(start=start_beside, stop=end_beside)


def end_relay(node_id: str) -> None:
    """End the relay of a node, if there is one."""
    with contextlib.suppress(ray.exceptions.RayError, ValueError):
        name = f"{RELAY_ACTOR}{node_id}"
        ray.kill(ray.get_actor(name, namespace=NAMESPACE), no_restart=True)


def end_relays() -> None:
    """End the relays of all nodes."""
    with contextlib.suppress(ray.exceptions.RayError, ValueError):
        for one in ray.util.list_named_actors(all_namespaces=True):
            if one["namespace"] == NAMESPACE and one["name"].startswith(RELAY_ACTOR):
                end_relay(one["name"].removeprefix(RELAY_ACTOR))
