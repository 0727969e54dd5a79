"""Which system calls an answer may make, and the filter that says so.

Everything else fails with EPERM, so that a program that tries fails visibly. A call in
another architecture's convention, which the numbers below would misread, ends the process.
Numbers are those of the kernel's tables: x86_64 first, then aarch64 (None: it has no such
call).
"""

import errno
import platform
from dataclasses import dataclass

from services.protocol.errors import InvalidInput
from services.reward_service.isolation.bpf import ARCH_AT, NUMBER_AT, Assembler, argument_at

# Nothing here makes, renames or changes a file, opens a socket, starts a program or a
# process, maps memory outside the address space limit, or touches another process. Landlock
# does not govern changes of mode, owner or times, so their absence here is what denies them.
PLAIN: dict[str, tuple[int, int | None]] = {
    "read": (0, 63),
    "write": (1, 64),
    "readv": (19, 65),
    "writev": (20, 66),
    "pread64": (17, 67),
    "pwrite64": (18, 68),
    "open": (2, None),
    "openat": (257, 56),
    "close": (3, 57),
    "close_range": (436, 436),
    "stat": (4, None),
    "fstat": (5, 80),
    "lstat": (6, None),
    "newfstatat": (262, 79),
    "statx": (332, 291),
    "access": (21, None),
    "faccessat": (269, 48),
    "faccessat2": (439, 439),
    "poll": (7, None),
    "ppoll": (271, 73),
    "select": (23, None),
    "pselect6": (270, 72),
    "lseek": (8, 62),
    "mmap": (9, 222),
    "mprotect": (10, 226),
    "munmap": (11, 215),
    "mremap": (25, 216),
    "brk": (12, 214),
    "madvise": (28, 233),
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "rt_sigsuspend": (130, 133),
    "rt_sigtimedwait": (128, 137),
    "rt_sigpending": (127, 136),
    "sigaltstack": (131, 132),
    "pipe": (22, None),
    "pipe2": (293, 59),
    "sched_yield": (24, 124),
    "dup": (32, 23),
    "dup2": (33, None),
    "dup3": (292, 24),
    "pause": (34, None),
    "nanosleep": (35, 101),
    "clock_nanosleep": (230, 115),
    "getitimer": (36, 102),
    "setitimer": (38, 103),
    "alarm": (37, None),
    "restart_syscall": (219, 128),
    "getpid": (39, 172),
    "getppid": (110, 173),
    "gettid": (186, 178),
    "getpgrp": (111, None),
    "getpgid": (121, 155),
    "getsid": (124, 156),
    "getuid": (102, 174),
    "geteuid": (107, 175),
    "getgid": (104, 176),
    "getegid": (108, 177),
    "getresuid": (118, 148),
    "getresgid": (120, 150),
    "getgroups": (115, 158),
    "exit": (60, 93),
    "exit_group": (231, 94),
    "wait4": (61, 260),
    "waitid": (247, 95),
    "uname": (63, 160),
    "getdents64": (217, 61),
    "getcwd": (79, 17),
    "umask": (95, 166),
    "gettimeofday": (96, 169),
    "time": (201, None),
    "clock_gettime": (228, 113),
    "clock_getres": (229, 114),
    "times": (100, 153),
    "getrusage": (98, 165),
    "getrlimit": (97, 163),
    "sysinfo": (99, 179),
    "getcpu": (309, 168),
    "arch_prctl": (158, None),
    "set_tid_address": (218, 96),
    "set_robust_list": (273, 99),
    "get_robust_list": (274, 100),
    "futex": (202, 98),
    "sched_getaffinity": (204, 123),
    "sched_getparam": (143, 121),
    "sched_getscheduler": (145, 120),
    "sched_get_priority_max": (146, 125),
    "sched_get_priority_min": (147, 126),
    "getrandom": (318, 278),
    "rseq": (334, 293),
    "membarrier": (324, 283),
    "ftruncate": (77, 46),
}

# What a compiler needs beyond that; Landlock says on which files.
COMPILER: dict[str, tuple[int, int | None]] = {
    "fork": (57, None),
    "vfork": (58, None),
    "execve": (59, 221),
    "readlink": (89, None),
    "readlinkat": (267, 78),
    "unlink": (87, None),
    "unlinkat": (263, 35),
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fadvise64": (221, 223),
    "fallocate": (285, 47),
    "chdir": (80, 49),
}

# Allowed with certain arguments only.
GUARDED: dict[str, tuple[int, int | None]] = {
    "clone": (56, 220),
    "clone3": (435, 435),
    "fcntl": (72, 25),
    "ioctl": (16, 29),
    "kill": (62, 129),
    "tgkill": (234, 131),
    "prctl": (157, 167),
    "prlimit64": (302, 261),
}

EXECVEAT = (322, 281)
"""Only for compiled programs, and only with AT_EMPTY_PATH."""
_AT_EMPTY_PATH = 0x1000

_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""Column of the tables and AUDIT_ARCH value of linux/audit.h."""

_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_X32_BIT = 0x40000000
_CLONE_THREAD = 0x00010000
_CLONE_NAMESPACES = 0x7E020000
_FCNTL_COMMANDS = (0, 1, 2, 3, 4, 1030, 1032)
"""F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_DUPFD_CLOEXEC, F_GETPIPE_SZ. Not F_SETOWN:
with F_SETSIG it sends any signal to any process of the same user."""
_IOCTL_COMMANDS = (0x5401, 0x5413, 0x541B, 0x5450, 0x5451)
"""TCGETS, TIOCGWINSZ, FIONREAD, FIONCLEX, FIOCLEX."""
_PRCTL_OPTIONS = (15, 16)
"""PR_SET_NAME, PR_GET_NAME."""


@dataclass(frozen=True, kw_only=True)
class SeccompFilter:
    """An encoded filter.

    Attributes:
        program: instructions of 8 bytes.
        own_pid_at: offset of the 32-bit constant that each process replaces by its own id,
            the only one that it may signal.
    """

    program: bytes
    own_pid_at: int


def build_filter(
    machine: str | None = None, *, programs: bool = False, compiler: bool = False
) -> SeccompFilter:
    """Assemble the filter for a machine, by default this one.

    Args:
        machine: as `platform.machine` names it.
        programs: let a process start a program that it holds a descriptor of. It stays
            confined, Landlock lets it execute no file, and it can make no memory file.
        compiler: let it make processes, start programs and change the modes of its files.

    Raises:
        InvalidInput: there is no table of system calls for the machine.
    """
    machine = machine or platform.machine()
    if machine not in _MACHINES:
        fix = f"The sandbox knows {' and '.join(_MACHINES)} only."
        raise InvalidInput("machine architecture", machine, fix)
    column, arch = _MACHINES[machine]
    asm = Assembler()
    asm.load(ARCH_AT)
    asm.if_equal(arch, if_false="kill_process")
    asm.load(NUMBER_AT)
    asm.if_at_least(_X32_BIT, if_true="deny")
    for numbers in (PLAIN | COMPILER if compiler else PLAIN).values():
        if (number := numbers[column]) is not None:
            asm.if_equal(number, if_true="allow")
    if programs:
        asm.if_equal(EXECVEAT[column], if_true="execveat")
    for name, numbers in GUARDED.items():
        if (number := numbers[column]) is not None:
            asm.if_equal(number, if_true=name)
    asm.jump("deny")
    if programs:
        asm.label("execveat")  # only what a descriptor stands for
        asm.load(argument_at(4))
        asm.if_equal(_AT_EMPTY_PATH, if_true="allow", if_false="deny")
    own_pid_at = _guards(asm, processes=compiler)
    return SeccompFilter(program=asm.encode(), own_pid_at=own_pid_at)


def _guards(asm: Assembler, *, processes: bool) -> int:
    """The sections that look at arguments, and the ends; gives the place of the process id."""
    for name, index, values in (
        ("fcntl", 1, _FCNTL_COMMANDS),
        ("ioctl", 1, _IOCTL_COMMANDS),
        ("prctl", 0, _PRCTL_OPTIONS),
    ):
        asm.label(name)
        asm.load(argument_at(index))
        for value in values:
            asm.if_equal(value, if_true="allow")
        asm.jump("deny")
    asm.label("prlimit64")  # only to read: no new limit is given
    asm.load(argument_at(2))
    asm.if_equal(0, if_false="deny")
    asm.load(argument_at(2, high=True))
    asm.if_equal(0, if_true="allow", if_false="deny")
    asm.label("clone")  # only threads, or processes, and never in new namespaces
    asm.load(argument_at(0))
    asm.mask(_CLONE_NAMESPACES if processes else _CLONE_THREAD | _CLONE_NAMESPACES)
    asm.if_equal(0 if processes else _CLONE_THREAD, if_true="allow", if_false="deny")
    asm.label("kill")
    asm.label("tgkill")
    asm.load(argument_at(0))
    own_pid_at = 8 * len(asm) + 4
    asm.if_equal(0xFFFFFFFF, if_true="allow", if_false="deny")
    asm.label("clone3")  # its flags are in memory, out of reach; libc then uses clone
    asm.give(_ERRNO | errno.ENOSYS)
    asm.label("deny")
    asm.give(_ERRNO | errno.EPERM)
    asm.label("allow")
    asm.give(_ALLOW)
    asm.label("kill_process")
    asm.give(_KILL)
    return own_pid_at
