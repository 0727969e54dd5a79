"""One end of a TCP stream between two nodes; an actor on each."""

import socket
import time

_CHUNK = 4 << 20
_WAIT_S = 60.0


class NodeLink:
    """Sends and receives bytes that nobody keeps."""

    def __init__(self) -> None:
        self._listener: socket.socket | None = None

    def listen(self) -> int:
        """Open a port for one sender, and return it."""
        self._listener = socket.create_server(("", 0))
        self._listener.settimeout(_WAIT_S)
        port: int = self._listener.getsockname()[1]
        return port

    def receive(self, size: int) -> float:
        """Take so many bytes; returns the seconds from the first to the last of them.

        Raises:
            RuntimeError: nothing listens.
            OSError: the sender did not come, or left early.
        """
        if self._listener is None:
            raise RuntimeError("listen was not called")
        with self._listener as listener:
            stream, _ = listener.accept()
        with stream:
            stream.settimeout(_WAIT_S)
            buffer, left, began = bytearray(_CHUNK), size, time.perf_counter()
            while left:
                taken = stream.recv_into(buffer, min(left, _CHUNK))
                if not taken:
                    raise ConnectionError(f"the sender left with {left} bytes to go")
                left -= taken
        return time.perf_counter() - began

    def send(self, address: str, port: int, size: int) -> None:
        """Send so many bytes.

        Raises:
            OSError: the receiver cannot be reached, or stopped reading.
        """
        chunk = memoryview(bytes(_CHUNK))
        with socket.create_connection((address, port), _WAIT_S) as stream:
            for at in range(0, size, _CHUNK):
                stream.sendall(chunk[: min(_CHUNK, size - at)])
