"""By which way a version reaches one replica: from whom, over which links, onto what."""

from services.protocol.weight_bus import Link, Phase
from services.protocol.weights import WeightManifest
from services.weight_bus.reports import UpdateFailed
from services.weight_bus.surroundings import Surroundings


def senders(
    around: Surroundings, replica_id: str, manifest: WeightManifest, failures: int
) -> tuple[str, ...] | None:
    """Who can send the version, one member id for each trainer rank; None: nobody.

    The trainer's ranks, unless they are gone, are another trainer of another size, or have
    just failed; else one replica that keeps a copy stands in for all of them.
    """
    ranks = around.trainers.current
    if ranks is not None and len(ranks) != manifest.world_size:
        ranks = None
    peer = around.replicas.holder_of(manifest, besides=replica_id)
    if peer is not None and (ranks is None or failures % 2 == 1):
        return (peer,) * manifest.world_size
    return ranks


def base_of_changes(
    around: Surroundings, replica_id: str, manifest: WeightManifest, failures: int
) -> int | None:
    """The version onto which changes are enough; None: everything must be sent.

    Only what the replica itself acknowledged to hold, and nothing after a failure.
    """
    replica, every = around.replicas.get(replica_id), around.config.delta_anchor_every
    if replica is None or not replica.hello.keeps_copy or not every or failures:
        return None
    return None if manifest.version % every == 0 else replica.committed_version


async def links(around: Surroundings, replica_id: str, prefix: str, ranks: int) -> tuple[Link, ...]:
    """One link for each trainer rank.

    Raises:
        UpdateFailed: the replica is gone.
    """
    replica = around.replicas.get(replica_id)
    if replica is None:
        raise UpdateFailed(Phase.STAGE, "the replica left")
    host, port = await around.store()
    return tuple(
        Link(
            replica_id=replica_id,
            trainer_rank=rank,
            store_host=host,
            store_port=port,
            prefix=f"{prefix}t{rank}",
            world_size=1 + replica.hello.tensor_parallel_size,
            timeout_s=around.config.link_timeout_s,
        )
        for rank in range(ranks)
    )
