"""A network that breaks: every connection of this process but those to the policy.

CPython asks audit hooks before each connection and each look-up of a name (PEP 578); a hook that
raises refuses it, whatever library makes the call. Libraries with sockets of their own in C are
not seen, nor are programs that the process starts.
"""

import errno
import os
import signal
import socket
import stat
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

POLICY, FELT = "MILLRACE_AUDIT_POLICY", "MILLRACE_AUDIT_FELT"
"""Variables: the policy's `host:port`, and a file that gets a byte for each failure."""
_broken: list[int] = []


def break_network() -> None:
    """Cut open connections, and refuse new ones from now on."""
    if _broken:
        return
    _broken.append(os.open(os.environ[FELT], os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC))
    sys.addaudithook(_refuse)
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            _cut(int(name))


def __getattr__(name: str) -> Callable[..., Any]:
    """The rollout function that is named in hexadecimal digits; SIGUSR1 breaks its network."""
    try:
        environment = bytes.fromhex(name).decode()
    except ValueError:
        raise AttributeError(name) from None
    from services.orchestrator.rollout.environment_host import load_rollout

    signal.signal(signal.SIGUSR1, lambda *_: break_network())
    return load_rollout(environment)


def _cut(descriptor: int) -> None:
    """End the connection, if it is one of the network and not to the policy."""
    if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
        return
    with socket.socket(fileno=os.dup(descriptor)) as connection:
        if connection.family in (socket.AF_INET, socket.AF_INET6):
            peer = connection.getpeername()
            if not _is_policy(peer):
                connection.shutdown(socket.SHUT_RDWR)
                _feel()


def _refuse(event: str, given: tuple[Any, ...]) -> None:
    if event == "socket.connect" and isinstance(given[1], tuple) and not _is_policy(given[1]):
        _feel()
        raise ConnectionRefusedError(errno.ECONNREFUSED, "refused by the audit")
    if event == "socket.getaddrinfo" and given[0] not in (None, _policy()[0]):
        _feel()
        raise socket.gaierror(socket.EAI_AGAIN, "refused by the audit")


def _is_policy(address: tuple[Any, ...]) -> bool:
    return (str(address[0]), str(address[1])) == _policy()


def _policy() -> tuple[str, str]:
    host, _, port = os.environ[POLICY].rpartition(":")
    return host, port


def _feel() -> None:
    os.write(_broken[0], b".")
