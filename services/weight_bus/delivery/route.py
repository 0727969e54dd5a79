"""The route of a version to one replica: its senders, links, transport and base."""

from collections.abc import Sequence

from services.protocol.weights.hello import ReplicaHello
from services.protocol.weights.weight_bus import Link, Phase, Transport
from services.protocol.weights.weights import WeightManifest
from services.weight_bus.delivery.delivery_context import DeliveryContext
from services.weight_bus.delivery.reports import UpdateFailed


def senders(
    context: DeliveryContext, replica_id: str, manifest: WeightManifest, failures: int
) -> tuple[str, ...] | None:
    """Members that can send the version, one for each trainer rank; None: there are none.

    The trainer's ranks, unless they are gone, are another trainer of another size, or have
    just failed; else one replica that keeps a copy stands in for all of them.
    """
    ranks = context.trainers.current
    if ranks is not None and len(ranks) != manifest.world_size:
        ranks = None
    peer = context.replicas.holder_of(manifest, besides=replica_id)
    if peer is not None and (ranks is None or failures % 2 == 1):
        return (peer,) * manifest.world_size
    return ranks


def base_of_changes(
    context: DeliveryContext, replica_id: str, manifest: WeightManifest, failures: int
) -> int | None:
    """The version onto which changes are enough; None: everything must be sent.

    Only what the replica itself acknowledged to hold, and nothing after a failure.
    """
    replica, every = context.replicas.get(replica_id), context.config.delta_anchor_every
    if replica is None or not replica.hello.keeps_copy or not every or failures:
        return None
    return None if manifest.version % every == 0 else replica.committed_version


def transport_between(
    context: DeliveryContext, sender: str, receiver: ReplicaHello, *, plain: bool
) -> Transport:
    """The transport from one sender to the replica; `plain`: TCP, if that is allowed.

    A replica that stands in for the trainer sends over the wire: its copy lies in memory of
    its own.

    Raises:
        UpdateFailed: the configured way does not lead there.
    """
    wanted, rank = context.config.transport, context.trainers.hello(sender)
    if rank is None:
        return Transport.GLOO
    possible = [Transport.GLOO]
    if rank.has_gpu and receiver.has_gpu:
        possible.append(Transport.NCCL)
    if rank.memory_domain == receiver.memory_domain != "":
        possible.append(Transport.SHARED_MEMORY)
    if wanted == "auto":
        return Transport.GLOO if plain else possible[-1]
    if wanted not in possible:
        raise UpdateFailed(
            Phase.STAGE,
            f"weight_bus.transport: {wanted} -> Between {sender} and {receiver.replica_id} only "
            f"{', '.join(possible)} can be used.",
        )
    return Transport(wanted)


async def links(
    context: DeliveryContext, replica_id: str, prefix: str, senders: Sequence[str], *, plain: bool
) -> tuple[Link, ...]:
    """One link from each sender, in the order of the trainer's ranks.

    Raises:
        UpdateFailed: the replica is gone, or cannot be reached as configured.
    """
    replica = context.replicas.get(replica_id)
    if replica is None:
        raise UpdateFailed(Phase.STAGE, "the replica left")
    host, port = await context.store()
    return tuple(
        Link(
            replica_id=replica_id,
            trainer_rank=rank,
            store_host=host,
            store_port=port,
            prefix=f"{prefix}t{rank}",
            timeout_s=context.config.link_timeout_s,
            transport=transport_between(context, sender, replica.hello, plain=plain),
        )
        for rank, sender in enumerate(senders)
    )
