"""A port for a server that another process will start in a while."""

import random
import socket
from pathlib import Path

_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST = 10_000


def free_port() -> int:
    """One that is free and that the kernel gives to nobody who asks for any.

    A port that the kernel chose and that was closed again may be another one's connection by the
    time a server is ready to take it.
    """
    below = int(_RANGE.read_text().split()[0])
    highest = max(below, 2 * _LOWEST)  # some machines give nearly all ports to anybody
    for port in random.sample(range(_LOWEST, highest), 100):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue  # somebody else has it
            return port
    raise AssertionError(f"no free port of a hundred from {_LOWEST} to {highest}")
