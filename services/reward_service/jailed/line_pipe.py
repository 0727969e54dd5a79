"""Lines between two jails, over a pair of pipes that the service made."""

import fcntl
import os
import select
import signal
import time

_BYTES = 1 << 16


class PeerClosed(Exception):
    """The other side is gone."""


class PeerTimeout(Exception):
    """The other side was waited for longer than it may be."""


class LineTooLong(Exception):
    """The other side sent a line longer than it may be."""


class LinePipe:
    """Sends and receives lines, one at a time.

    Args:
        read_fd: where the other side's lines come from.
        write_fd: where lines go.
        max_bytes: longest line that is received.
        timeout_s: seconds that all waiting together may take; None for any time.
    """

    def __init__(
        self, read_fd: int, write_fd: int, *, max_bytes: int, timeout_s: float | None = None
    ) -> None:
        self._read_fd, self._write_fd, self._max_bytes = read_fd, write_fd, max_bytes
        self._left_s = timeout_s
        self._received = bytearray()
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # it shall be a PeerClosed
        flags = fcntl.fcntl(write_fd, fcntl.F_GETFL)
        fcntl.fcntl(write_fd, fcntl.F_SETFL, flags | os.O_NONBLOCK)

    def send(self, line: str) -> None:
        """Send a line of ASCII.

        Raises:
            PeerClosed, PeerTimeout: it cannot be sent.
        """
        rest = memoryview(line.encode("ascii") + b"\n")
        while rest:
            self._wait([], [self._write_fd])
            try:
                rest = rest[os.write(self._write_fd, rest[:_BYTES]) :]
            except BlockingIOError:
                continue
            except BrokenPipeError:
                raise PeerClosed from None

    def receive(self) -> str:
        """The next line.

        Raises:
            PeerClosed, PeerTimeout, LineTooLong: there is none that can be used.
        """
        seen = 0
        while (end := self._received.find(b"\n", seen)) < 0:
            seen = len(self._received)
            if seen > self._max_bytes:
                raise LineTooLong
            self._wait([self._read_fd], [])
            part = os.read(self._read_fd, _BYTES)
            if not part:
                raise PeerClosed
            self._received += part
        line = self._received[:end].decode("ascii", "replace")
        del self._received[: end + 1]
        return line

    def _wait(self, readable: list[int], writable: list[int]) -> None:
        started = time.monotonic()
        ready = select.select(readable, writable, [], self._left_s)
        if self._left_s is not None:
            self._left_s = max(0.0, self._left_s - (time.monotonic() - started))
            if not any(ready):
                raise PeerTimeout
