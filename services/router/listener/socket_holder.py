"""A process that keeps the router's port open while routers come and go.

It listens, and hands the listening socket to every router of its node, which accept from it
themselves: a request does not pass through this process. While a router is replaced, new
connections wait in the kernel for the next one instead of being refused. After `PATIENCE_S`
without any router this process answers them itself, with status 503.

It runs by its path, without site packages, so that it starts in milliseconds and takes 10 MB:

    python -I -S socket_holder.py NAME HOST PORT OWNER_PID [DESCRIPTOR]

With a descriptor it holds that socket, which listens already. It prints `held` once it listens, or
why it cannot. It ends with its owner, when the router that was left last has said that the
application ends, or when no router came for `ALONE_S`.
"""

import contextlib
import errno
import os
import select
import selectors
import socket
import struct
import sys
import time
from collections.abc import Callable

BACKLOG = 4096
PATIENCE_S = 60.0
ALONE_S = 180.0
HELD = "held"
ENDING = b"e"
"""A router says that the application ends, not it alone."""

_TICK_S = 1.0
_MOST_CLIENTS = 256
_CLIENT_S = 5.0
_BODY = (
    b'{"error": {"message": "no router is running; it is being restarted, or could not start",'
    b' "type": "no_router", "param": null, "code": 503}}'
)
_ANSWER = (
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 5\r\n"
    b"connection: close\r\ncontent-length: %d\r\n\r\n%s" % (len(_BODY), _BODY)
)


def peer_uid(connection: socket.socket) -> int:
    """The user at the other end of a Unix socket, as the kernel knows it."""
    packed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", packed)[1])


def listening(host: str, port: int) -> socket.socket:
    """A TCP socket that listens.

    Raises:
        OSError: the address is taken, or is none of this machine.
    """
    # asyncio turns Nagle's delay of 40 ms off only where the protocol is named.
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
        made.listen(BACKLOG)
    except OSError:
        made.close()
        raise
    return made


class SocketHolder:
    """Serves routers until the socket is no longer needed; one thread, no locks.

    Args:
        control: the Unix socket at which routers ask.
        listener: the socket that they are given.
        owner: a process's descriptor, readable when that process has ended.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        control: socket.socket,
        listener: socket.socket,
        owner: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._control, self._listener, self._owner, self._clock = control, listener, owner, clock
        self._routers: dict[socket.socket, bool] = {}
        self._clients: dict[socket.socket, float] = {}
        self._alone_since = clock()
        self._ending = self._answers = False
        self._events = selectors.DefaultSelector()
        for one in (control, listener):
            one.setblocking(False)
        for source in (control, owner):
            self._events.register(source, selectors.EVENT_READ)

    def run(self) -> None:
        """Return when the owner has ended, or when the socket is no longer needed."""
        while not self._is_over():
            for key, _ in self._events.select(_TICK_S):
                if key.fileobj == self._owner:
                    return
                if key.fileobj is self._control:
                    self._on_connect()
                elif key.fileobj is self._listener:
                    self._accept_client()
                elif key.fileobj in self._routers:
                    self._on_message(key.fileobj)  # type: ignore[arg-type]
                elif key.fileobj in self._clients:
                    self._answer(key.fileobj)  # type: ignore[arg-type]

    def _is_over(self) -> bool:
        now = self._clock()
        for client in [one for one, came in self._clients.items() if now - came > _CLIENT_S]:
            self._drop(client)
        if self._routers:
            return False
        alone = now - self._alone_since
        if alone > PATIENCE_S and not self._answers:
            self._answers = True
            self._events.register(self._listener, selectors.EVENT_READ)
        return self._ending or alone > ALONE_S

    def _on_connect(self) -> None:
        try:
            router, _ = self._control.accept()
        except OSError:
            return
        if peer_uid(router) != os.geteuid():
            router.close()
            return
        try:
            socket.send_fds(router, [b"l"], [self._listener.fileno()])
        except OSError:
            router.close()
            return
        if self._answers:
            self._answers = False
            self._events.unregister(self._listener)
        self._ending = False
        self._routers[router] = False
        self._events.register(router, selectors.EVENT_READ)

    def _on_message(self, router: socket.socket) -> None:
        try:
            said = router.recv(1)
        except OSError:
            said = b""
        if said:
            self._routers[router] = said == ENDING
            return
        self._events.unregister(router)
        self._ending = self._routers.pop(router)
        router.close()
        self._alone_since = self._clock()

    def _accept_client(self) -> None:
        try:
            client, _ = self._listener.accept()
        except OSError:  # a router took it
            return
        if len(self._clients) >= _MOST_CLIENTS:
            client.close()
            return
        client.setblocking(False)
        self._clients[client] = self._clock()
        self._events.register(client, selectors.EVENT_READ)

    def _answer(self, client: socket.socket) -> None:
        """Say that there is no router, then read to the end, so that the client can read it."""
        try:
            more = client.recv(1 << 16)
            with contextlib.suppress(BrokenPipeError):  # it was said before
                client.send(_ANSWER)
                client.shutdown(socket.SHUT_WR)
        except OSError:
            more = b""
        if not more:
            self._drop(client)

    def _drop(self, client: socket.socket) -> None:
        self._events.unregister(client)
        del self._clients[client]
        client.close()


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    """Hold one address."""
    name, host, port, owner, *descriptors = sys.argv[1:]
    control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        control.bind(f"\0{name}")
    except OSError as error:  # another router was as quick, and its process holds the socket
        _say(HELD if error.errno == errno.EADDRINUSE else str(error.strerror))
        return
    try:
        owner_fd = os.pidfd_open(int(owner))
        if descriptors:
            listener = socket.socket(fileno=int(descriptors[0]))
        else:
            listener = listening(host, int(port))
    except OSError as error:
        _say(str(error.strerror))
        return
    if select.select([owner_fd], [], [], 0)[0]:
        _say("the owner has ended")
        return
    control.listen()
    _say(HELD)
    SocketHolder(control, listener, owner_fd).run()


if __name__ == "__main__":
    main()
