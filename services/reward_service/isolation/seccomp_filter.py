"""Which system calls an answer may make, and the filter that says so.

Everything else fails with EPERM, so that a program that tries fails visibly. A call in
another architecture's convention, which the numbers would misread, ends the process. The calls
are listed in `system_calls.csv`, with the numbers of the kernel's tables for x86_64 and aarch64
(empty: it has no such call).
"""

import csv
import errno
import platform
from dataclasses import dataclass
from pathlib import Path

from services.protocol.errors import InvalidInput
from services.reward_service.isolation.bpf import (
    AND,
    ARCH_AT,
    JUMP,
    JUMP_AT_LEAST,
    JUMP_EQUAL,
    LOAD,
    NUMBER_AT,
    RETURN,
    Assembler,
    argument_at,
)

_Calls = dict[str, tuple[int, int | None]]


def _calls(allowed: str) -> _Calls:
    with (Path(__file__).parent / "system_calls.csv").open(encoding="utf-8") as file:
        return {
            row["call"]: (int(row["x86_64"]), int(row["aarch64"]) if row["aarch64"] else None)
            for row in csv.DictReader(file)
            if row["allowed"] == allowed
        }


PLAIN = _calls("always")
"""Nothing here makes, renames or changes a file, opens a socket, starts a program or a process,
maps memory outside the address space limit, or touches another process. Landlock does not govern
changes of mode, owner or times, so their absence here is what denies them."""
COMPILER = _calls("in a compiler")
"""What a compiler needs beyond that; Landlock says on which files."""
GUARDED = _calls("with arguments")
"""Allowed with certain arguments only: see `_guards`."""
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
    asm.add(LOAD, ARCH_AT)
    asm.add(JUMP_EQUAL, arch, if_false="kill_process")
    asm.add(LOAD, NUMBER_AT)
    asm.add(JUMP_AT_LEAST, _X32_BIT, if_true="deny")
    for numbers in (PLAIN | COMPILER if compiler else PLAIN).values():
        if (number := numbers[column]) is not None:
            asm.add(JUMP_EQUAL, number, if_true="allow")
    if programs:
        asm.add(JUMP_EQUAL, EXECVEAT[column], if_true="execveat")
    for name, numbers in GUARDED.items():
        if (number := numbers[column]) is not None:
            asm.add(JUMP_EQUAL, number, if_true=name)
    asm.add(JUMP, "deny")
    if programs:
        asm.label("execveat")  # only what a descriptor stands for
        asm.add(LOAD, argument_at(4))
        asm.add(JUMP_EQUAL, _AT_EMPTY_PATH, if_true="allow", if_false="deny")
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
        asm.add(LOAD, argument_at(index))
        for value in values:
            asm.add(JUMP_EQUAL, value, if_true="allow")
        asm.add(JUMP, "deny")
    asm.label("prlimit64")  # only to read: no new limit is given
    asm.add(LOAD, argument_at(2))
    asm.add(JUMP_EQUAL, 0, if_false="deny")
    asm.add(LOAD, argument_at(2, high=True))
    asm.add(JUMP_EQUAL, 0, if_true="allow", if_false="deny")
    asm.label("clone")  # only threads, or processes, and never in new namespaces
    asm.add(LOAD, argument_at(0))
    asm.add(AND, _CLONE_NAMESPACES if processes else _CLONE_THREAD | _CLONE_NAMESPACES)
    asm.add(JUMP_EQUAL, 0 if processes else _CLONE_THREAD, if_true="allow", if_false="deny")
    asm.label("kill")
    asm.label("tgkill")
    asm.add(LOAD, argument_at(0))
    own_pid_at = 8 * len(asm) + 4
    asm.add(JUMP_EQUAL, 0xFFFFFFFF, if_true="allow", if_false="deny")
    asm.label("clone3")  # its flags are in memory, out of reach; libc then uses clone
    asm.add(RETURN, _ERRNO | errno.ENOSYS)
    asm.label("deny")
    asm.add(RETURN, _ERRNO | errno.EPERM)
    asm.label("allow")
    asm.add(RETURN, _ALLOW)
    asm.label("kill_process")
    asm.add(RETURN, _KILL)
    return own_pid_at
