"""The node that a service is on, and the custom resource that keeps it there."""

from dataclasses import dataclass
from typing import Literal

Placement = Literal["separate", "shared"]
"""Whether ranks and engines have GPUs of their own, or the same ones in turn."""

NODE_RESOURCE_SHARE = 0.001
"""Amount of a `node_resource` that each replica or rank asks for. Nodes have 1 of it, so that it
says where something may be and never how much of it."""


@dataclass(frozen=True)
class SharedSeat:
    """One device that an engine's worker and a rank of the trainer use in turn.

    Attributes:
        node_id: Ray's id of its node.
        device: its name there: of a GPU as in `CUDA_VISIBLE_DEVICES`, else of a share of the CPUs.
    """

    node_id: str
    device: str


@dataclass(frozen=True, kw_only=True)
class Node:
    """A node of the cluster.

    Attributes:
        ip: its address, at which other nodes reach it.
        ray_id: Ray's id of it; empty without Ray.
    """

    ip: str
    ray_id: str = ""
