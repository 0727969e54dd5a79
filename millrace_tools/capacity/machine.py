"""Checks of the machine that the demo runs on: its ports, memory and disks."""

import errno
import os
import random
import socket
from contextlib import suppress
from pathlib import Path

from services.disk import free_bytes, write_problem
from services.memory import free_memory
from services.protocol.errors import InvalidInput, NotReady

GIB, MIB = 1 << 30, 1 << 20
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
_LOWEST_PORT = 10_000
_NO_IPV4 = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


def check_port(port: int) -> None:
    """Refuse a port on which the router could not listen.

    Raises:
        InvalidInput: out of range, not permitted or in use; or there is no IPv4 at all.
    """
    if not 1 <= port <= 65535:
        raise InvalidInput("--port", port, "Give a number from 1 to 65535.")
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError as error:
        if error.errno in _NO_IPV4:
            fix = "This machine lacks it: `ip address add 127.0.0.1/8 dev lo`."
            raise InvalidInput("loopback address", "127.0.0.1", fix) from None
        fix = f"{os.strerror(error.errno or 0)}. Give a free one: `make demo PORT=8010`."
        raise InvalidInput("--port", port, fix) from None


def free_port() -> int:
    """A free loopback port outside the range from which the kernel picks ports.

    A port that the kernel picked and that was closed again may belong to another program by the
    time a server listens there.

    Raises:
        NotReady: none of a hundred is free.
    """
    below = int(_EPHEMERAL.read_text().split()[0])
    highest = max(below, 2 * _LOWEST_PORT)  # on some machines that range is nearly all ports
    for port in random.sample(range(_LOWEST_PORT, highest), 100):
        with suppress(OSError):  # it is in use
            socket.create_server(("127.0.0.1", port)).close()
            return port
    raise NotReady(f"no free port of a hundred from {_LOWEST_PORT} to {highest}")


def check_memory(needed_gib: float) -> None:
    """Refuse a machine on which the services would be killed half-way.

    Raises:
        InvalidInput: less memory is available, to the machine or to the container.
    """
    available = free_memory() / GIB
    if available < needed_gib:
        fix = f"The demo needs {needed_gib:g} GiB free. Close something, or use a larger machine."
        raise InvalidInput("memory", f"{available:.1f} GiB free", fix)


def check_folder(folder: str | Path, needed_mib: int, purpose: str) -> None:
    """Refuse a folder in which services would fail half-way.

    Raises:
        InvalidInput: it cannot be written, or its disk is too full.
    """
    needs = f"{purpose} needs a folder that can be written, with {needed_mib} MiB free."
    if problem := write_problem(folder):
        raise InvalidInput("folder", str(folder), f"{problem}: {needs}")
    free = free_bytes(folder) // MIB
    if free < needed_mib:
        raise InvalidInput("folder", str(folder), f"{free} MiB free: {needs}")
