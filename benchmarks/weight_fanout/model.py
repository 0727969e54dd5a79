"""How long a version takes along a chain of nodes: a model of the protocol, no measurement."""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

FEW, MANY = 8, 32
"""Nodes of the runs that the model is held to."""
LINK_TIMEOUT_S = 5.0
MBIT = 1e6 / 8
SIZES = {"14B": (28e9, 4), "32B": (64e9, 32), "70B": (140e9, 64)}
"""Bytes of a version in bfloat16, and nodes with rollout servers."""
BUCKET = 256 << 20
RELAY_CORES = 16
GBIT_S = (100, 400)


@dataclass(frozen=True, kw_only=True)
class Costs:
    """The costs of the real protocol, from runs.

    Attributes:
        fixed_s: of a version of one bucket to one node: orders, links, votes, commit.
        hop_s: that each further node adds, beside the time of a bucket on its wire.
        cpu_s_per_gb: CPU seconds in which a relay receives, checks and passes on 1e9 bytes.
        wire_share: share of the bytes on a cable that is payload.
    """

    fixed_s: float
    hop_s: float
    cpu_s_per_gb: float
    wire_share: float


@dataclass(frozen=True, kw_only=True)
class Chain:
    """Nodes, and the version that passes along them.

    Attributes:
        nodes: with a relay each.
        nbytes: of the version.
        bucket_bytes: of a bucket, of all trainer ranks together.
        wire: bytes a second that a node's network carries in each direction.
        cores: of a node that a relay's threads may use at the same time.
    """

    nodes: int
    nbytes: float
    bucket_bytes: float
    wire: float
    cores: float

    def seconds(self, costs: Costs) -> float:
        """From the publication until the last node holds the version.

        A node passes a bucket on when it has it whole and has passed on the one before.
        """
        rate = min(self.wire * costs.wire_share, self.cores / costs.cpu_s_per_gb * 1e9)
        buckets = max(1, round(self.nbytes / self.bucket_bytes))
        on_wire_s = self.nbytes / buckets / rate
        free = [0.0] * self.nodes  # when the way to each node can take the next bucket
        for _ in range(buckets):
            here = 0.0
            for node in range(self.nodes):
                free[node] = max(free[node], here) + on_wire_s
                here = free[node] + costs.hop_s
        return costs.fixed_s + free[-1]


def costs_of(figures: Mapping[str, Any]) -> Costs:
    """The costs by the runs of one node and of `FEW`, which the model does not predict then."""
    nbytes, bucket = figures["nbytes"], figures["bucket_bytes"]
    wire = figures["mbit_s"]["few"] * MBIT
    one, fixed = median(figures["one"]["seconds"]), median(figures["small"]["seconds"])
    share = (nbytes - bucket) / (one - fixed) / wire
    bucket_s = bucket / (share * wire)
    more = median(figures["few"]["seconds"]) - one
    return Costs(
        fixed_s=max(0.0, fixed - bucket_s),
        hop_s=max(0.0, more / (FEW - 1) - bucket_s),
        cpu_s_per_gb=figures["fast"]["cpu_s_per_gb"],
        wire_share=share,
    )


def chain_of(figures: Mapping[str, Any], nodes: int, mbit_s: float) -> Chain:
    """The chain of one of these runs, whose relays need less than a core."""
    return Chain(
        nodes=nodes,
        nbytes=figures["nbytes"],
        bucket_bytes=figures["bucket_bytes"],
        wire=mbit_s * MBIT,
        cores=1.0,
    )


def at_size(costs: Costs) -> list[list[str]]:
    """A table of large models on networks of data centres; the first row names the columns."""
    rows = [["model", "nodes", *(f"{gbit_s} Gb/s" for gbit_s in GBIT_S)]]
    for name, (nbytes, nodes) in SIZES.items():
        chains = [
            Chain(
                nodes=nodes,
                nbytes=nbytes,
                bucket_bytes=BUCKET,
                wire=gbit_s * 1000 * MBIT,
                cores=RELAY_CORES,
            )
            for gbit_s in GBIT_S
        ]
        rows.append([name, str(nodes), *(f"{one.seconds(costs):.1f} s" for one in chains)])
    return rows
