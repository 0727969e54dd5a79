"""The network interfaces that links take in turn, and members whose node lacks one of them."""

import math
from collections.abc import Iterable

from services.protocol.errors import InvalidInput
from services.weight_bus.delivery.delivery_context import DeliveryContext


def check_interfaces(context: DeliveryContext, member_ids: Iterable[str]) -> None:
    """Refuse interfaces that are not there, before anybody is ordered to use them.

    Raises:
        InvalidInput: the node of one of these members has no such interface.
    """
    for member_id in member_ids:
        known = _interfaces_of(context, member_id)
        for name in context.config.interfaces:
            if known and name not in known:
                fix = (
                    f"The node of {member_id} has {', '.join(known)}: set weight_bus.interfaces to "
                    "names that all nodes have."
                )
                raise InvalidInput("interfaces", name, fix)


def check_all_interfaces(context: DeliveryContext) -> None:
    """See `check_interfaces`, for the trainer's ranks and the replicas in service.

    Else each update of each replica would fail, until none has a lease.
    """
    replicas = context.replicas
    serving = [
        replica_id
        for replica_id in replicas.replica_ids
        if (replica := replicas.get(replica_id)) is not None and replicas.in_service(replica)
    ]
    check_interfaces(context, [*(context.trainers.current or ()), *serving])


def stripes_for(senders: int, interfaces: int) -> int:
    """Links for each sender, so that links which take the interfaces in turn use them equally."""
    return interfaces // math.gcd(senders, interfaces) if interfaces else 1


def _interfaces_of(context: DeliveryContext, member_id: str) -> tuple[str, ...]:
    member = context.replicas.get(member_id) or context.relays.get(member_id)
    hello = member.hello if member is not None else context.trainers.hello(member_id)
    return hello.interfaces if hello is not None else ()
