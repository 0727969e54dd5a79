"""The network interfaces of this node over which links can go."""

import ipaddress
import socket

import psutil

_FAMILIES = (socket.AF_INET, socket.AF_INET6)


def network_interfaces() -> tuple[str, ...]:
    """Names of those that have an address that other nodes can reach, loopback included."""
    return tuple(
        sorted(
            name
            for name, addresses in psutil.net_if_addrs().items()
            if any(one.family in _FAMILIES and _leads_out(one.address) for one in addresses)
        )
    )


def _leads_out(address: str) -> bool:
    # A link-local address means nothing without the interface of the node that has it.
    return not ipaddress.ip_address(address.partition("%")[0]).is_link_local
