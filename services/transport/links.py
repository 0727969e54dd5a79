"""Links of the transport that the bus has chosen."""

import torch

from services.protocol.weights.weight_bus import Link, Transport
from services.transport.gloo import GlooLink


def make_link(
    link: Link, address: str, member: int = 0, device: torch.device | None = None
) -> GlooLink:
    """This process's end of a link, not open yet; see `GlooLink` for the arguments.

    Args:
        link: see `GlooLink`.
        address: see `GlooLink`.
        member: see `GlooLink`.
        device: this member's GPU, through which NCCL passes bytes; None where it has none.

    Raises:
        ValueError: the transport is NCCL, and there is no GPU.
    """
    if link.transport is Transport.NCCL:
        from services.transport.nccl import NcclLink  # needs a GPU

        if device is None or device.type != "cuda":
            raise ValueError(f"{link.prefix}: NCCL passes bytes between GPUs, and this is {device}")
        return NcclLink(link, address, member, device=device)
    return GlooLink(link, address, member)
