"""The router's side of the process that holds its port: the socket, and who else needs it."""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from typing import Protocol

from services.protocol.errors import InvalidInput
from services.router.config import ListenConfig
from services.router.http import socket_holder

_START_S = 30.0
_PAUSE_S = 0.05


class Port(Protocol):
    """Where the listening socket comes from."""

    async def open(self, config: ListenConfig) -> socket.socket:
        """A socket that listens.

        Raises:
            InvalidInput: the address is taken, or is none of this machine.
        """

    def close(self, *, ending: bool) -> None:
        """This router needs it no more; `ending`: nor will any other."""


class OwnPort:
    """A socket of this process alone, for a router without Ray."""

    async def open(self, config: ListenConfig) -> socket.socket:
        """See `Port`."""
        try:
            return socket_holder.listening(config.host, config.port)
        except OSError as error:
            raise _refused(config, error.strerror or str(error)) from None

    def close(self, *, ending: bool) -> None:
        """See `Port`."""


class HeldPort:
    """A socket that outlives this process; see `services.router.http.socket_holder`.

    Args:
        node: unique for the node and its Ray cluster; routers with the same share the socket.
        owner: the process with which the socket ends: the node's raylet.
    """

    def __init__(self, node: str, owner: int) -> None:
        self._node, self._owner = node, owner
        self._door: socket.socket | None = None

    async def open(self, config: ListenConfig) -> socket.socket:
        """See `Port`."""
        name = f"millrace-{self._node}-{config.host}-{config.port}"
        async with asyncio.timeout(_START_S):
            while True:
                with contextlib.suppress(ConnectionError):
                    return await asyncio.to_thread(self._ask, name)
                said = await asyncio.to_thread(_start, name, config, self._owner)
                if said != socket_holder.HELD:
                    raise _refused(config, said)
                await asyncio.sleep(_PAUSE_S)  # a holder that is just ending refuses once more

    def close(self, *, ending: bool) -> None:
        """See `Port`."""
        if self._door is not None:
            with contextlib.suppress(OSError):
                if ending:
                    self._door.send(socket_holder.ENDING)
                self._door.close()
            self._door = None

    def _ask(self, name: str) -> socket.socket:
        door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        door.settimeout(_START_S)
        try:
            door.connect(f"\0{name}")
            if socket_holder.peer_uid(door) != os.geteuid():
                raise PermissionError(f"another user's process answers at {name}")
            _, descriptors, _, _ = socket.recv_fds(door, 1, 1)
            if not descriptors:
                raise ConnectionResetError("the holder is ending")
        except OSError:
            door.close()
            raise
        self._door = door
        return socket.socket(fileno=descriptors[0])


def _start(name: str, config: ListenConfig, owner: int) -> str:
    """Start a holder that is nobody's child; returns its first line."""
    command = [sys.executable, "-I", "-S", socket_holder.__file__]
    command += [name, config.host, str(config.port), str(owner)]
    # By a shell that ends at once: Ray kills the children of a router that ends.
    started = subprocess.Popen(
        ["/bin/sh", "-c", 'exec "$@" 2>/dev/null &', "sh", *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )
    assert started.stdout is not None
    with started.stdout as output:
        said = output.readline().strip()
    started.wait(_START_S)
    return said or "its process ended at once"


def _refused(config: ListenConfig, reason: str) -> InvalidInput:
    fix = (
        f"{config.host} cannot be listened on: {reason}. `ss -ltnp` shows who has the port; give "
        "the router another one, and orchestrator.args.router_url with it."
    )
    return InvalidInput("router.args.listen.port", config.port, fix)
