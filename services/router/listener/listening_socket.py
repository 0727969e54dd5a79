"""The public port's listening socket: of this process, or inherited from a socket holder."""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import time
from hashlib import blake2b
from typing import Protocol

from services.observability.log import Log
from services.protocol.errors import InvalidInput
from services.router.config import ListenConfig
from services.router.listener import socket_holder

_LOG = Log("router")
_START_S = 30.0
_PAUSE_S = 0.05
_REPLACED_S = 2.0
"""How long a port may be taken: by routers that are just making another holder."""


class ListeningSocket(Protocol):
    """Where the listening socket comes from."""

    async def open(self, config: ListenConfig) -> socket.socket:
        """A socket that listens.

        Raises:
            InvalidInput: the address is taken, or is none of this machine.
        """

    def close(self, *, ending: bool) -> None:
        """This router needs it no more; `ending`: nor will any other."""


class OwnListeningSocket:
    """A socket of this process alone, for a router without Ray."""

    async def open(self, config: ListenConfig) -> socket.socket:
        """See `ListeningSocket`."""
        try:
            return socket_holder.listening(config.host, config.port)
        except OSError as error:
            raise _refused(config, error.strerror or str(error)) from None

    def close(self, *, ending: bool) -> None:
        """See `ListeningSocket`."""


class InheritedListeningSocket:
    """A socket that outlives this process; see `services.router.listener.socket_holder`.

    When the holder dies, a router that lives makes another one, with its own copy of the socket.

    Args:
        node: unique for the node and its Ray cluster; routers with the same share the socket.
        owner: the process with which the socket ends: the node's raylet.
    """

    def __init__(self, node: str, owner: int) -> None:
        self._node, self._owner = node, owner
        self._control: socket.socket | None = None
        self._copy: socket.socket | None = None
        self._replacing: asyncio.Task[None] | None = None

    async def open(self, config: ListenConfig) -> socket.socket:
        """See `ListeningSocket`."""
        listener = await self._attach(config)
        host, port = listener.getsockname()[:2]
        if host != config.host:
            self.close(ending=False)
            listener.close()
            fix = (
                f"Routers of this cluster listen on {host} at port {port}, and go on until the new "
                "ones are up: choose another port, or delete the application before."
            )
            raise InvalidInput("router.args.listen.host", config.host, fix)
        self._copy = listener.dup()
        self._watch(config)
        return listener

    def close(self, *, ending: bool) -> None:
        """See `ListeningSocket`."""
        if self._replacing is not None:
            self._replacing.cancel()
        if self._control is not None and ending:
            with contextlib.suppress(OSError):
                self._control.send(socket_holder.ENDING)
        self._drop_control(asyncio.get_running_loop())
        if self._copy is not None:
            self._copy.close()
            self._copy = None

    def _watch(self, config: ListenConfig) -> None:
        assert self._control is not None
        loop = asyncio.get_running_loop()
        loop.add_reader(self._control, self._on_holder_gone, config, loop)

    def _on_holder_gone(self, config: ListenConfig, loop: asyncio.AbstractEventLoop) -> None:
        """A holder sends nothing: its connection can only end."""
        _LOG.warning("socket_holder_gone", port=config.port)
        self._drop_control(loop)
        self._replacing = loop.create_task(self._replace(config), name="socket_holder")

    async def _replace(self, config: ListenConfig) -> None:
        """Attach to another holder, or make one of this router's own copy of the socket."""
        try:
            (await self._attach(config)).close()
            self._watch(config)
        except (InvalidInput, OSError) as problem:
            # This router serves on; its port ends with it.
            _LOG.warning("socket_holder_missing", port=config.port, problem=str(problem))

    def _drop_control(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._control is not None:
            loop.remove_reader(self._control)  # before another file gets its number
            self._control.close()
            self._control = None

    async def _attach(self, config: ListenConfig) -> socket.socket:
        # Of any length, where the kernel takes 107 characters.
        named = blake2b(f"{self._node} {config.port}".encode(), digest_size=16).hexdigest()
        name, given_up = f"millrace-{named}", time.monotonic() + _REPLACED_S
        async with asyncio.timeout(_START_S):
            while True:
                with contextlib.suppress(ConnectionError):
                    return await asyncio.to_thread(self._ask, name)
                said = await asyncio.to_thread(_start, name, config, self._owner, self._copy)
                if said != socket_holder.HELD and time.monotonic() > given_up:
                    raise _refused(config, said)
                await asyncio.sleep(_PAUSE_S)  # a holder is just ending, or being replaced

    def _ask(self, name: str) -> socket.socket:
        control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        control.settimeout(_START_S)
        try:
            control.connect(f"\0{name}")
            if socket_holder.peer_uid(control) != os.geteuid():
                raise PermissionError(f"another user's process answers at {name}")
            _, descriptors, _, _ = socket.recv_fds(control, 1, 1, socket.MSG_CMSG_CLOEXEC)
            if not descriptors:
                raise ConnectionResetError("the holder is ending")
        except OSError:
            control.close()
            raise
        self._control = control
        return socket.socket(fileno=descriptors[0])


def _start(name: str, config: ListenConfig, owner: int, copy: socket.socket | None) -> str:
    """Start a holder as a process without a parent; returns its first line."""
    handed = [] if copy is None else [copy.fileno()]
    command = [sys.executable, "-I", "-S", socket_holder.__file__]
    command += [name, config.host, str(config.port), str(owner), *map(str, handed)]
    # By a shell that ends at once: Ray kills the children of a router that ends.
    started = subprocess.Popen(
        ["/bin/sh", "-c", 'exec "$@" 2>/dev/null &', "sh", *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        pass_fds=handed,
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
