"""The service's end of the socket to a slot: one message out, one message back."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import Sequence

_MESSAGE_BYTES = 1 << 16
_CREDENTIALS = struct.Struct("=iII")
"""`struct ucred` of unix(7): process, user and group id, as the receiver sees them."""


class Control:
    """Sends messages with descriptors and waits for the answers.

    The event loop watches the socket from its first answer to its end: to begin and end watching
    for every answer costs more than all else that the service does for a short test.
    """

    def __init__(self) -> None:
        self._ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setblocking(False)
        self._ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._hung_up = False
        self._answer: asyncio.Future[tuple[bytes, int]] | None = None

    def send(self, message: bytes, descriptors: Sequence[int] = ()) -> None:
        """Send one message.

        Raises:
            OSError: the other end is gone, or its buffer is full.
        """
        socket.send_fds(self._ours, [message], list(descriptors))

    async def receive(self, timeout_s: float) -> tuple[bytes, int]:
        """One message and the process id of its sender; empty if the other end is closed.

        Raises:
            TimeoutError: nothing came.
        """
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._ours, self._hear)
        if self._hung_up:
            return b"", 0
        self._answer = self._loop.create_future()
        answer = self._answer
        # Not asyncio.timeout, which prefers the deadline where the loop comes late to both.
        await asyncio.wait([answer], timeout=timeout_s)
        if not answer.done():
            raise TimeoutError
        return answer.result()

    def close(self) -> None:
        """Hang up."""
        self._stop_watching()
        self._ours.close()
        self.theirs.close()

    def _hear(self) -> None:
        try:
            message, extras, _, _ = self._ours.recvmsg(
                _MESSAGE_BYTES, socket.CMSG_SPACE(_CREDENTIALS.size)
            )
        except BlockingIOError:
            return
        except OSError:
            message, extras = b"", []
        if not message:
            self._hung_up = True
            self._stop_watching()
        senders = [_CREDENTIALS.unpack(data)[0] for _, _, data in extras]
        # What nobody asked for is dropped: only a slot that an answer has broken says more.
        if self._answer is not None and not self._answer.done():
            self._answer.set_result((message, senders[0] if senders else 0))

    def _stop_watching(self) -> None:
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop may be closed already
                self._loop.remove_reader(self._ours)
