"""The start-up self-test's program: it tries to break out and prints what it managed.

It is run as an answer would be, so what it cannot do no answer can.
"""

import ctypes
import json
import mmap
import os
import resource
import signal
import socket
import time
from collections.abc import Callable

CLONE_NEWUSER, CLONE_FILES = 0x10000000, 0x400
PTRACE_TRACEME = 0
_OF_A_PROCESS = 2
"""The kind of clock that clock_getcpuclockid(3) makes."""
MEMORY_LIMIT = 256 << 20

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")


def _fork() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


def _signal_parent() -> None:
    os.kill(os.getppid(), 0)


def _signal_by_owner() -> None:
    reader, _ = os.pipe()
    f_setown = 8
    _check(_libc.fcntl(reader, f_setown, os.getppid()))


def _raise_limit() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, resource.getrlimit(resource.RLIMIT_CPU))


def _write(path: str) -> Callable[[], object]:
    return lambda: os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)


ATTACKS: dict[str, Callable[[], object]] = {
    "inherited_descriptor": lambda: _other_descriptors()[0],  # first: others open some
    "socket": lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM),
    "socketpair": socket.socketpair,
    "fork": _fork,
    "exec": lambda: os.execv("/usr/bin/env", ["env"]),
    "read_file": lambda: os.open("/etc/passwd", os.O_RDONLY),
    "read_proc": lambda: os.open("/proc/self/environ", os.O_RDONLY),
    "list_root": lambda: os.listdir("/"),
    "write_tmp": _write("/tmp/millrace-probe"),
    "write_shm": _write("/dev/shm/millrace-probe"),
    "write_here": _write("millrace-probe"),
    "signal_parent": _signal_parent,
    "signal_all": lambda: os.kill(-1, 0),
    "signal_by_owner": _signal_by_owner,
    "memfd": lambda: os.memfd_create("probe"),
    "system_facts": lambda: _check(_libc.sysinfo(ctypes.create_string_buffer(128))),
    "parents_clock": lambda: time.clock_gettime((~os.getppid() << 3) | _OF_A_PROCESS),
    "new_namespace": lambda: _check(_libc.unshare(CLONE_NEWUSER)),
    "unshare": lambda: _check(_libc.unshare(CLONE_FILES)),
    "raise_limit": _raise_limit,
    "private_memory": lambda: bytearray(MEMORY_LIMIT + (1 << 20)),
    "shared_memory": lambda: mmap.mmap(-1, MEMORY_LIMIT + (1 << 20)),
    # Last: from here it would stop at every signal.
    "ptrace": lambda: _check(_libc.ptrace(PTRACE_TRACEME, 0, None, None)),
}


def _other_descriptors() -> list[int]:
    """Open descriptors beside the streams, the report and the standard library's folder."""
    return [number for number in range(4, 1024) if number != 60 and _is_open(number)]


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False
    return True


def succeeds(attack: Callable[[], object]) -> bool:
    """Whether an attack is not refused."""
    try:
        attack()
    except (OSError, MemoryError, IndexError, ValueError):
        return False
    return True


def _in_namespaces() -> bool:
    """Whether the host's files and processes are out of sight, not only out of reach."""
    hidden = ("/etc/passwd", "/proc/self", "/home", "/var", "/tmp", "/sys")
    return os.getppid() == 1 and not any(os.path.exists(path) for path in hidden)


if __name__ == "__main__":
    signal.signal(signal.SIGIO, signal.SIG_IGN)
    print(  # noqa: T201 - its standard output is its result
        json.dumps(
            {
                "managed": [name for name, attack in ATTACKS.items() if succeeds(attack)],
                "namespaces": _in_namespaces(),
            }
        )
    )
