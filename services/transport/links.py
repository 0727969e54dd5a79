"""Links of the transport that the bus has chosen."""

from services.protocol.weights.weight_bus import Link, Transport
from services.transport.gloo import GlooLink


def make_link(link: Link, address: str, member: int = 0) -> GlooLink:
    """This process's end of a link, not open yet; see `GlooLink` for the arguments."""
    if link.transport is Transport.NCCL:
        from services.transport.nccl import NcclLink  # needs a GPU

        return NcclLink(link, address, member)
    return GlooLink(link, address, member)
