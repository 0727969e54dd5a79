"""Making this process's end of a link, of the kind that the bus has chosen."""

from services.protocol.weights.weight_bus import Link, Transport
from services.transport.gloo import GlooLink


def end_of(link: Link, address: str, member: int = 0) -> GlooLink:
    """An end that is not open yet; see `GlooLink` for the arguments."""
    if link.transport is Transport.NCCL:
        from services.transport.nccl import NcclLink  # needs a GPU

        return NcclLink(link, address, member)
    return GlooLink(link, address, member)
