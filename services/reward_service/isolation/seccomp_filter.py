"""Which system calls an answer may make, and the filter that says so.

Everything else fails with EPERM, so that a program that tries fails visibly. A call in
another architecture's convention, which the numbers would misread, ends the process. The calls
are listed in `system_calls.csv`, with the numbers of the kernel's tables for x86_64 and aarch64
(empty: it has no such call).
"""

import errno
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from services.protocol.errors import InvalidInput
from services.reward_service.isolation.argument_guards import (
    ERRNO,
    KILL,
    guards,
    memory_guard,
    program_guard,
    socket_guards,
)
from services.reward_service.isolation.bpf import (
    ARCH_AT,
    JUMP_AT_LEAST,
    JUMP_EQUAL,
    LOAD,
    NEXT,
    NUMBER_AT,
    RETURN,
    Assembler,
)
from services.reward_service.isolation.system_calls import (
    COMPILER,
    EXECVEAT,
    GUARDED,
    PLAIN,
    SETS,
    UNSUPPORTED,
    in_workspace,
)

_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
"""Column of the tables and AUDIT_ARCH value of linux/audit.h."""

_X32_BIT = 0x40000000

Role = Literal["answer", "program", "compiler", "workspace", "workspace with a network"]
"""What a process may do beside computing. An answer: no more. A program: start a program that it
holds a descriptor of, once; it stays confined, Landlock lets it execute no file, and it can make no
memory file. A compiler: make processes, start programs and change the modes of its files. A
workspace: what a shell needs; signals reach whatever the jail lets them reach. With a network: TCP,
too."""
_WORKSPACE_ROLES = ("workspace", "workspace with a network")


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
    role: Role = "answer",
    machine: str | None = None,
    *,
    private_memory: bool = False,
    sets: Sequence[str] = (),
) -> SeccompFilter:
    """Assemble the filter of a process.

    Args:
        role: what the process is for.
        machine: as `platform.machine` names it, by default this one.
        private_memory: for a process whose address space is far larger than its memory: let it
            map no memory that RLIMIT_DATA does not count, which is anonymous memory that is shared,
            and stacks that grow.
        sets: names of more system calls that it may make, of `SETS`.

    Raises:
        InvalidInput: there is no table of system calls for the machine.
    """
    machine = machine or platform.machine()
    if machine not in _MACHINES:
        fix = f"The sandbox knows {' and '.join(_MACHINES)} only."
        raise InvalidInput("machine architecture", machine, fix)
    column, arch = _MACHINES[machine]
    sections = _sections(role, private_memory, sets)
    places = ((numbers[column], section) for numbers, section in sections.items())
    asm = Assembler()
    asm.add(LOAD, ARCH_AT)
    asm.add(JUMP_EQUAL, arch, if_false="kill_process")
    asm.add(LOAD, NUMBER_AT)
    asm.add(JUMP_AT_LEAST, _X32_BIT, if_true="deny")
    _search(asm, _intervals({number: section for number, section in places if number is not None}))
    asm.label("kill_process")
    asm.add(RETURN, KILL)
    if role == "program":
        program_guard(asm)
    if private_memory:
        memory_guard(asm)
    if role in _WORKSPACE_ROLES:
        asm.label("unsupported")
        asm.add(RETURN, ERRNO | errno.EOPNOTSUPP)
        socket_guards(asm)
    own_pid_at = guards(
        asm, processes=role not in ("answer", "program"), workspace=role in _WORKSPACE_ROLES
    )
    return SeccompFilter(program=asm.encode(), own_pid_at=own_pid_at)


def _sections(
    role: Role, private_memory: bool, sets: Sequence[str]
) -> dict[tuple[int, int | None], str]:
    """By the numbers of a call: the part of the filter that decides on it."""
    allowed, guarded = PLAIN | (COMPILER if role == "compiler" else {}), GUARDED
    if role in _WORKSPACE_ROLES:
        allowed, guarded = in_workspace(network=role == "workspace with a network")
    for name in sets:
        allowed = allowed | SETS[name]
    sections = dict.fromkeys(allowed.values(), "allow")
    sections |= {numbers: name for name, numbers in guarded.items()}
    if role in _WORKSPACE_ROLES:
        sections |= dict.fromkeys(UNSUPPORTED.values(), "unsupported")
    if role == "program":
        sections[EXECVEAT] = "execveat"
    if private_memory:
        sections[PLAIN["mmap"]] = "mmap"
    return sections


def _intervals(labels: dict[int, str]) -> list[tuple[int, str]]:
    """The first number of each run of calls with the same section."""
    found = [(0, labels.get(0, "deny"))]
    for number in range(1, max(labels) + 2):
        label = labels.get(number, "deny")
        if label != found[-1][1]:
            found.append((number, label))
    return found


def _search(asm: Assembler, intervals: list[tuple[int, str]]) -> None:
    """Jump to the section of the loaded number by binary search.

    The kernel tries a filter on every call when a process takes it over, so a list of all calls
    would cost a short program more than all else that confines it.
    """
    middle = len(intervals) // 2
    below, above = intervals[:middle], intervals[middle:]
    first = above[0][0]
    asm.add(
        JUMP_AT_LEAST,
        first,
        if_true=above[0][1] if len(above) == 1 else f"from {first}",
        if_false=below[0][1] if len(below) == 1 else NEXT,
    )
    if len(below) > 1:
        _search(asm, below)
    if len(above) > 1:
        asm.label(f"from {first}")
        _search(asm, above)
