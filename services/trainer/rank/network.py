"""Where Gloo listens: the node's own address, not what the hostname resolves to."""

import fcntl
import socket
import struct

_SIOCGIFADDR = 0x8915


def interface_of(address: str) -> str | None:
    """Name of the network interface that has this IPv4 address, None when none has."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)
            except OSError:
                continue  # an interface without an IPv4 address
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return None
