"""What Ray is asked for, for one replica."""

from typing import Any

from services.protocol.placement import NODE_RESOURCE_SHARE
from services.rollout_server.config import RolloutServerConfig
from services.warm_workers import Stage, warmed


def resources(config: RolloutServerConfig) -> dict[str, Any]:
    """Options of the Serve deployment.

    An engine of several GPUs gets a placement group of one bundle: its worker processes are
    children of the replica's process and see the GPUs that Ray gave to that one, so all of
    them must be the replica's own, and on one node. Where no node has so many the replica
    waits, and `serve status` says for what.
    """
    mine: dict[str, Any] = {"num_cpus": config.num_cpus, "num_gpus": config.gpus}
    node = {config.node_resource: NODE_RESOURCE_SHARE} if config.node_resource else {}
    if node:
        mine["resources"] = node
    mine |= warmed(Stage.ENGINE)
    if config.gpus <= 1:
        return {"ray_actor_options": mine}
    return {
        "ray_actor_options": mine,
        "placement_group_bundles": [{"CPU": config.num_cpus, "GPU": float(config.gpus)} | node],
        "placement_group_strategy": "STRICT_PACK",
    }
