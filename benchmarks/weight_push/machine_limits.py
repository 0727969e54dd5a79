"""The limits of the machine that a push is compared with."""

import socket
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from benchmarks.report import MIB


def loopback_rate(nbytes: int = 512 * MIB) -> float:
    """Bytes a second through one TCP stream of this machine."""
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        sending = pool.submit(_send, listener.getsockname(), nbytes)
        connection, _ = listener.accept()
        with connection:
            buffer, received, began = bytearray(MIB), 0, time.perf_counter()
            while got := connection.recv_into(buffer):
                received += got
            seconds = time.perf_counter() - began
        sending.result()
    assert received == nbytes, "the stream ended early"
    return nbytes / seconds


def _send(address: tuple[str, int], nbytes: int) -> None:
    block = bytes(MIB)
    with socket.create_connection(address) as connection:
        for _ in range(nbytes // MIB):
            connection.sendall(block)


def copy_rate(nbytes: int = 256 * MIB) -> float:
    """Bytes a second of one thread that copies memory it has touched before."""
    source, target = np.full(nbytes, 1, np.uint8), np.full(nbytes, 2, np.uint8)
    began = time.perf_counter()
    np.copyto(target, source)
    return nbytes / (time.perf_counter() - began)
