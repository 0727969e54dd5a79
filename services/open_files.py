"""How many files one process may have open; each connection is one of them."""

import contextlib
import resource

_MOST = 1 << 20  # what Linux lets a process have unless it is told otherwise: fs.nr_open
_OTHERS = 256  # files, libraries, Ray, and connections that are being refused


def open_files() -> int:
    """How many this process may have."""
    return _bounded(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def most_open_files() -> int:
    """How many it may have once it has raised its soft limit to the hard one."""
    return _bounded(resource.getrlimit(resource.RLIMIT_NOFILE)[1])


def most_connections(open_files: int) -> int:
    """How many connections to clients a limit allows a router, and as many to replicas."""
    return max((open_files - _OTHERS) // 2, open_files // 4, 1)


def raise_open_files() -> None:
    """Raise the soft limit to the hard one; every service does so when its process starts.

    The soft limit is 1,024 on most systems for programs that call select(2), which no service
    does. Programs that this process starts inherit the limit; sandboxes set their own.
    """
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if open_files() < most_open_files():
        with contextlib.suppress(ValueError, OSError):  # a kernel that refuses leaves it as it is
            resource.setrlimit(resource.RLIMIT_NOFILE, (most_open_files(), hard))


def _bounded(limit: int) -> int:
    return _MOST if limit == resource.RLIM_INFINITY else min(limit, _MOST)
