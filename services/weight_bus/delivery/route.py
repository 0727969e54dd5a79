"""The route of a version to one receiver: its senders, links, transport and base."""

from collections.abc import Sequence
from dataclasses import dataclass

from services.protocol.errors import InvalidInput
from services.protocol.weights.weight_bus import Link, Phase, Transport
from services.protocol.weights.weights import WeightManifest
from services.weight_bus.delivery.delivery_context import DeliveryContext
from services.weight_bus.delivery.interfaces import check_interfaces, stripes_for
from services.weight_bus.delivery.reports import UpdateFailed

_STRAIGHT = 2
"""Failures after which a relay is fed by the trainer itself."""


@dataclass(frozen=True, kw_only=True)
class Receiver:
    """What a route depends on.

    Attributes:
        member_id: the replica or the relay.
        memory_domain: see `TrainerHello`.
        has_gpu: see `TrainerHello`.
        copy: version whose bytes it acknowledged to hold, None for none.
    """

    member_id: str
    memory_domain: str
    has_gpu: bool
    copy: int | None


def senders_to_replica(
    context: DeliveryContext, replica_id: str, manifest: WeightManifest, failures: int
) -> tuple[str, ...] | None:
    """Members that can send the version, one for each trainer rank; None: there are none.

    The trainer's ranks, unless they are gone, have not published it, are of another number, or have
    just failed; else one relay or replica that has a copy stands in for all of them.
    """
    ranks = _ranks(context, manifest)
    peer = context.relays.holder_of(manifest, besides=replica_id)
    peer = peer or context.replicas.holder_of(manifest, besides=replica_id)
    if peer is not None and (ranks is None or failures % 2 == 1):
        return (peer,) * manifest.world_size
    return ranks


def senders_to_relay(
    context: DeliveryContext, relay_id: str, failures: int, avoided: frozenset[str]
) -> tuple[WeightManifest, tuple[str, ...]] | None:
    """The version for a relay, and the members that can send it, one for each trainer rank; None:
    there is none, or not yet.

    The relay before it in the chain sends what it has or receives, even if a newer version was
    published meanwhile. The first one, and one that has failed often, is fed by the trainer.
    Whoever holds the version stands in for a trainer that is gone.
    """
    published = context.newest()
    if published is None:
        return None
    newest, _ = published
    ranks = _ranks(context, newest)
    before = context.relays.before(relay_id, newest.version, avoided=avoided)
    if before is not None and (ranks is None or failures < _STRAIGHT):
        ahead = context.relays.get(before)
        passed = ahead.passes_on if ahead is not None else None
        return (passed, (before,) * passed.world_size) if passed is not None else None
    if ranks is not None:
        return newest, ranks
    peer = context.relays.holder_of(newest, besides=relay_id)
    peer = peer or context.replicas.holder_of(newest, besides=relay_id)
    return (newest, (peer,) * newest.world_size) if peer is not None else None


def base_of_changes(
    context: DeliveryContext, receiver: Receiver, manifest: WeightManifest, failures: int
) -> int | None:
    """The version onto which changes are enough; None: everything must be sent.

    Only what the receiver itself acknowledged to hold, and nothing after a failure.
    """
    every = context.config.delta_anchor_every
    if not every or failures or manifest.version % every == 0:
        return None
    # A copy of this very number is of a trainer before, or is wrong.
    return receiver.copy if receiver.copy != manifest.version else None


def transport_between(
    context: DeliveryContext, sender: str, receiver: Receiver, *, plain: bool
) -> Transport:
    """The transport from one sender to the receiver; `plain`: TCP, if that is allowed.

    A relay or replica that stands in for the trainer sends over the wire: its copy lies in
    memory of its own.

    Raises:
        UpdateFailed: the configured way does not lead there.
    """
    wanted, rank = context.config.transport, context.trainers.hello(sender)
    if rank is None:
        return Transport.GLOO
    possible = [Transport.GLOO]
    # On one machine both may have the same GPU, of which NCCL takes one member alone.
    if rank.has_gpu and receiver.has_gpu and not _same_machine(rank.memory_domain, receiver):
        possible.append(Transport.NCCL)
    if rank.memory_domain == receiver.memory_domain != "":
        possible.append(Transport.SHARED_MEMORY)
    if wanted == "auto":
        return Transport.GLOO if plain else possible[-1]
    if wanted not in possible:
        raise UpdateFailed(
            Phase.STAGE,
            f"weight_bus.transport: {wanted} -> Between {sender} and {receiver.member_id} only "
            f"{', '.join(possible)} can be used.",
        )
    return Transport(wanted)


async def links(
    context: DeliveryContext,
    receiver: Receiver,
    prefix: str,
    senders: Sequence[str],
    *,
    plain: bool,
) -> tuple[Link, ...]:
    """The links from each sender, in the order of the trainer's ranks.

    They take the configured interfaces in turn. A sender's buckets are divided over several links
    where one link from each sender would not use all interfaces equally.

    Raises:
        UpdateFailed: the receiver cannot be reached as configured.
    """
    names = context.config.interfaces
    try:
        check_interfaces(context, [*senders, receiver.member_id])
    except InvalidInput as refusal:
        raise UpdateFailed(Phase.STAGE, str(refusal)) from None
    stripes = stripes_for(len(senders), len(names))
    host, port = await context.store()
    made: list[Link] = []
    for rank, sender in enumerate(senders):
        transport = transport_between(context, sender, receiver, plain=plain)
        for stripe in range(stripes):
            made.append(
                Link(
                    replica_id=receiver.member_id,
                    trainer_rank=rank,
                    store_host=host,
                    store_port=port,
                    prefix=f"{prefix}t{rank}.{stripe}",
                    timeout_s=context.config.link_timeout_s,
                    transport=transport,
                    interface=names[len(made) % len(names)] if names else "",
                    stripe=stripe,
                    stripes=stripes,
                )
            )
    return tuple(made)


def _same_machine(memory_domain: str, receiver: Receiver) -> bool:
    boot, _, _ = memory_domain.partition("/")
    return boot == receiver.memory_domain.partition("/")[0] != ""


def _ranks(context: DeliveryContext, manifest: WeightManifest) -> tuple[str, ...] | None:
    ranks = context.trainers.senders
    return None if ranks is not None and len(ranks) != manifest.world_size else ranks
