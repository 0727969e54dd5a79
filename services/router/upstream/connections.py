"""TCP connections that break when the other host falls silent, however long a replica may think.

A replica that stands still, as in a commit, has a host that still acknowledges packets. Of one
that is cut off nobody hears anything: neither of its end nor of its answer.
"""

import math
import socket
from collections.abc import Callable
from typing import Any

_UNANSWERED = 3
"""Probes in a row that may get no acknowledgement."""


def socket_factory(silence_s: float) -> Callable[[Any], socket.socket]:
    """Sockets for `aiohttp.TCPConnector`.

    Args:
        silence_s: after so long without an acknowledgement a connection breaks; rounded up to
            what the kernel counts in, whole seconds for each of its probes.
    """
    pause_s = math.ceil(silence_s / (_UNANSWERED + 1))

    def made(address: Any) -> socket.socket:
        family, kind, protocol, *_ = address
        connection = socket.socket(family, kind, protocol)
        options = {
            # While nothing is under way, such as before an answer: probes.
            (socket.SOL_SOCKET, socket.SO_KEEPALIVE): 1,
            (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE): pause_s,
            (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL): pause_s,
            (socket.IPPROTO_TCP, socket.TCP_KEEPCNT): _UNANSWERED,
            # While something is, such as a request: 15 minutes, were it not for this.
            (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT): math.ceil(silence_s * 1000),
        }
        for (level, option), value in options.items():
            connection.setsockopt(level, option, value)
        return connection

    return made
