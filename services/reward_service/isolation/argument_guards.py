"""Parts of the filter that look at the arguments of calls: what they do, and to whose process."""

import errno

from services.reward_service.isolation.bpf import (
    AND,
    JUMP,
    JUMP_AT_LEAST,
    JUMP_EQUAL,
    LOAD,
    RETURN,
    SHIFT_RIGHT,
    XOR,
    Assembler,
    argument_at,
)

ALLOW, KILL, ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
"""What a filter returns; ERRNO with the number of the error."""
_OF_A_PROCESS = ("getpgid", "getsid", "sched_getparam", "sched_getscheduler")
_CLOCKS = ("clock_gettime", "clock_getres", "clock_nanosleep")
"""Of other processes both would tell which there are, and how much they compute."""
_AT_EMPTY_PATH = 0x1000
_MAP_SHARED, _MAP_ANONYMOUS, _MAP_GROWSDOWN = 0x01, 0x20, 0x100
_CLONE_THREAD = 0x00010000
_CLONE_NAMESPACES = 0x7E020000
_FCNTL_COMMANDS = (0, 1, 2, 3, 4, 1030, 1032)
"""F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_DUPFD_CLOEXEC, F_GETPIPE_SZ. Not F_SETOWN:
with F_SETSIG it sends any signal to any process of the same user."""
_IOCTL_COMMANDS = (0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451)
"""TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIONCLEX, FIOCLEX."""
_PRCTL_OPTIONS = (15, 16)
"""PR_SET_NAME, PR_GET_NAME."""
_FCNTL_LOCKS = (5, 6, 7, 36, 37, 38)
"""F_GETLK, F_SETLK, F_SETLKW and those of open file descriptions, for SQLite."""
_PRCTL_OF_PROCESSES = (1, 2, 3, 38, 39)
"""PR_SET_PDEATHSIG, PR_GET_PDEATHSIG, PR_GET_DUMPABLE, PR_SET_NO_NEW_PRIVS, PR_GET_NO_NEW_PRIVS."""
_AF_UNIX, _AF_INET, _AF_INET6 = 1, 2, 10
_SOCK_STREAM, _SOCK_TYPES = 1, 0xF
_SOCKET_OPTIONS = {1: (2, 7, 8, 9, 13, 15, 20, 21), 6: (1, 4, 5, 6, 18), 41: (26,)}
"""By level: of sockets SO_REUSEADDR, SO_SNDBUF, SO_RCVBUF, SO_KEEPALIVE, SO_LINGER, SO_REUSEPORT,
SO_RCVTIMEO, SO_SNDTIMEO; of TCP TCP_NODELAY, TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_KEEPCNT,
TCP_USER_TIMEOUT; of IPv6 IPV6_V6ONLY."""


def program_guard(asm: Assembler) -> None:
    """Of a program that is started: only one that a descriptor stands for."""
    asm.label("execveat")
    asm.add(LOAD, argument_at(4))
    asm.add(JUMP_EQUAL, _AT_EMPTY_PATH, if_true="allow", if_false="deny")


def memory_guard(asm: Assembler) -> None:
    """Of memory that is mapped: none that RLIMIT_DATA does not count, as it does not count
    anonymous memory that is shared, and stacks that grow."""
    asm.label("mmap")
    asm.add(LOAD, argument_at(3))
    asm.add(AND, _MAP_SHARED | _MAP_ANONYMOUS)
    asm.add(JUMP_EQUAL, _MAP_SHARED | _MAP_ANONYMOUS, if_true="deny")
    asm.add(LOAD, argument_at(3))
    asm.add(AND, _MAP_GROWSDOWN)
    asm.add(JUMP_EQUAL, 0, if_true="allow", if_false="deny")


def socket_guards(asm: Assembler) -> None:
    """Of sockets: pairs of stream sockets, which reach nobody else; TCP and its usual options."""
    for name, families in (("socketpair", (_AF_UNIX,)), ("socket", (_AF_INET, _AF_INET6))):
        asm.label(name)
        asm.add(LOAD, argument_at(0))
        for family in families:
            asm.add(JUMP_EQUAL, family, if_true=f"{name}_type")
        asm.add(JUMP, "deny")
        asm.label(f"{name}_type")
        asm.add(LOAD, argument_at(1))
        asm.add(AND, _SOCK_TYPES)
        asm.add(JUMP_EQUAL, _SOCK_STREAM, if_true="allow", if_false="deny")
    asm.label("setsockopt")
    asm.add(LOAD, argument_at(1))
    for level in _SOCKET_OPTIONS:
        asm.add(JUMP_EQUAL, level, if_true=f"level_{level}")
    asm.add(JUMP, "deny")
    for level, options in _SOCKET_OPTIONS.items():
        asm.label(f"level_{level}")
        asm.add(LOAD, argument_at(2))
        for option in options:
            asm.add(JUMP_EQUAL, option, if_true="allow")
        asm.add(JUMP, "deny")


def guards(asm: Assembler, *, processes: bool, workspace: bool) -> int:
    """The sections that look at arguments, and the ends; gives the place of the process id."""
    for name, index, values in (
        ("fcntl", 1, _FCNTL_COMMANDS + (_FCNTL_LOCKS if workspace else ())),
        ("ioctl", 1, _IOCTL_COMMANDS),
        ("prctl", 0, _PRCTL_OPTIONS + (_PRCTL_OF_PROCESSES if workspace else ())),
    ):
        asm.label(name)
        asm.add(LOAD, argument_at(index))
        for value in values:
            asm.add(JUMP_EQUAL, value, if_true="allow")
        asm.add(JUMP, "deny")
    asm.label("clone")  # only threads, or processes, and never in new namespaces
    asm.add(LOAD, argument_at(0))
    asm.add(AND, _CLONE_NAMESPACES if processes else _CLONE_THREAD | _CLONE_NAMESPACES)
    asm.add(JUMP_EQUAL, 0 if processes else _CLONE_THREAD, if_true="allow", if_false="deny")
    own_pid_at = _own_process(asm, workspace=workspace)
    asm.label("sched_getaffinity")  # libc asks it for threads, and goes on where it is missing
    asm.add(LOAD, argument_at(0))
    asm.add(JUMP_EQUAL, 0, if_true="allow")
    asm.label("clone3")  # its flags are in memory, out of reach; libc then uses clone
    asm.add(RETURN, ERRNO | errno.ENOSYS)
    asm.label("deny")
    asm.add(RETURN, ERRNO | errno.EPERM)
    asm.label("allow")
    asm.add(RETURN, ALLOW)
    return own_pid_at


def _own_process(asm: Assembler, *, workspace: bool) -> int:
    """The sections of calls that name a process, which must be the caller's own; gives the place
    of its id. A process of a workspace may also lower its own limits."""
    for name in _CLOCKS:
        asm.label(name)
    asm.add(LOAD, argument_at(0))
    asm.add(JUMP_AT_LEAST, 1 << 31, if_false="allow")  # a clock that is no process's
    asm.add(XOR, 0xFFFFFFFF)  # ~process << 3 and three bits for the kind: clock_getcpuclockid(3)
    asm.add(SHIFT_RIGHT, 3)
    asm.add(JUMP_EQUAL, 0, if_true="allow")
    asm.add(JUMP, "own_pid")
    asm.label("prlimit64")
    if workspace:
        asm.add(LOAD, argument_at(0))
        asm.add(JUMP_EQUAL, 0, if_true="allow")
    asm.add(LOAD, argument_at(2))  # only to read: no new limit is given
    asm.add(JUMP_EQUAL, 0, if_false="deny")
    asm.add(LOAD, argument_at(2, high=True))
    asm.add(JUMP_EQUAL, 0, if_false="deny")
    for name in _OF_A_PROCESS:
        asm.label(name)
    asm.add(LOAD, argument_at(0))
    asm.add(JUMP_EQUAL, 0, if_true="allow")
    asm.add(JUMP, "own_pid")
    for name in ("kill", "tgkill"):
        asm.label(name)
    asm.add(LOAD, argument_at(0))
    asm.label("own_pid")
    own_pid_at = 8 * len(asm) + 4
    asm.add(JUMP_EQUAL, 0xFFFFFFFF, if_true="allow", if_false="deny")
    return own_pid_at
