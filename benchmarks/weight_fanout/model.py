"""How long a version takes along a chain of nodes: a model of the protocol, no measurement."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Costs:
    """What runs of the real protocol cost.

    Attributes:
        fixed_s: of a version of one bucket to one node: orders, links, votes, commit.
        hop_s: that each further node adds, beside the time of a bucket on its wire.
        cpu_s_per_gb: CPU seconds in which a relay receives, checks and passes on 1e9 bytes.
        wire_share: share of what a cable carries that is payload.
    """

    fixed_s: float
    hop_s: float
    cpu_s_per_gb: float
    wire_share: float


@dataclass(frozen=True, kw_only=True)
class Chain:
    """Nodes, and what passes along them.

    Attributes:
        nodes: with a relay each.
        nbytes: of a version.
        bucket_bytes: of a bucket, of all trainer ranks together.
        wire: bytes a second that a node's network carries in each direction.
        cores: of a node that a relay's threads may use at the same time.
    """

    nodes: int
    nbytes: float
    bucket_bytes: float
    wire: float
    cores: float


def seconds(chain: Chain, costs: Costs) -> float:
    """From the publication until the last node holds the version.

    A node passes a bucket on when it has it whole and has passed on the one before.
    """
    rate = min(chain.wire * costs.wire_share, chain.cores / costs.cpu_s_per_gb * 1e9)
    buckets = max(1, round(chain.nbytes / chain.bucket_bytes))
    on_wire_s = chain.nbytes / buckets / rate
    free = [0.0] * chain.nodes  # when the way to each node can take the next bucket
    for _ in range(buckets):
        here = 0.0
        for node in range(chain.nodes):
            free[node] = max(free[node], here) + on_wire_s
            here = free[node] + costs.hop_s
    return costs.fixed_s + free[-1]
